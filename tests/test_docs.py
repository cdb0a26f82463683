"""The manual is complete (errors, problems, defects, words, settings, requests, commands); its links lead somewhere."""

from __future__ import annotations

import argparse
import ast
import importlib
import json
import pkgutil
import re
from dataclasses import Field, fields
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Final

import doc_tables
import pytest

from tests import REPOSITORY
from tests.kinds import damage
from tests.support import documents
from tests.test_architecture import FLOORS, FORBIDDEN_WORDS
from xpucached import domain
from xpucached.api import requests
from xpucached.cli import arguments, bundles, commands, exits, fleet
from xpucached.domain.activity import FileAct
from xpucached.domain.checks import LEVELS, PROBLEMS, Level
from xpucached.domain.defects import Effect, RepairAction
from xpucached.domain.dependencies import Role
from xpucached.domain.jobs import JobState
from xpucached.domain.models import Outcome, WarmReason, Warmth
from xpucached.domain.plans import EvictReason, NoRecipe
from xpucached.domain.status import Verdict
from xpucached.domain.stores import EntryState, StoreOrigin, StoreState
from xpucached.domain.trash import DropReason
from xpucached.domain.users import WorkerState
from xpucached.errors import XpucachedError
from xpucached.kinds import interface, sycl
from xpucached.kinds.interface import Kind
from xpucached.kinds.table import KINDS
from xpucached.settings import loading, model_files
from xpucached.settings.keys import keys

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

PACKAGE: Final = REPOSITORY / "xpucached"
PAGES: Final = sorted([*REPOSITORY.glob("*.md"), *REPOSITORY.glob("docs/*.md")])


def page(name: str) -> str:
    return (REPOSITORY / name).read_text(encoding="utf-8")


def section(text: str, title: str) -> str:
    """Return what stands below a heading, up to the next one of its level or above."""
    head = re.search(rf"^(?P<level>#+) {re.escape(title)}$", text, re.MULTILINE)
    assert head is not None, f"no heading {title!r}"
    rest = text[head.end() :]
    end = re.search(rf"^#{{1,{len(head['level'])}}} ", rest, re.MULTILINE)
    return rest[: end.start()] if end else rest


def rows(text: str) -> list[list[str]]:
    """Return the rows of all tables in a text, without their heads."""
    found: list[list[str]] = []
    lines = text.splitlines()
    for number, line in enumerate(lines):
        ruler = re.fullmatch(r"\|(?: -+ \|)+", line)
        for below in lines[number + 1 :] if ruler else ():
            if not below.startswith("|"):
                break
            found.append([cell.strip() for cell in re.split(r"(?<!\\)\|", below.strip("|"))])
    return found


def codes(text: str) -> list[str]:
    """Return everything in backticks."""
    return re.findall(r"`([^`\n]+)`", text)


def first(table: list[list[str]]) -> list[str]:
    """Return the words in backticks of each row's first cell."""
    return [code for row in table for code in codes(row[0])]


def family(root: type[XpucachedError]) -> Iterator[type[XpucachedError]]:
    """Yield every error that has a code of its own; a room may have finer ones for itself, under the same code."""
    if "code" in vars(root):
        yield root
    for child in root.__subclasses__():
        yield from family(child)


# -- operations.md --------------------------------------------------------------------------------------------------


def test_every_error_is_in_the_manual_with_its_status_and_its_sentence() -> None:
    told = [(code, int(status), words) for code, status, words in rows(section(page("docs/operations.md"), "Errors"))]
    there = [(f"`{one.code}`", one.exit, (one.__doc__ or "").strip()) for one in family(XpucachedError)]

    assert len(there) > 5
    assert sorted(told) == sorted(there)


def test_what_commands_end_with_is_in_the_manual() -> None:
    table = rows(section(page("docs/operations.md"), "What commands end with"))
    told = [(verb.strip("`"), int(status), means) for verb, status, means in table]
    meant = [(verb, one, means) for verb, known in exits.OF_COMMANDS.items() for one, means in known.items()]
    assert told == meant
    known = {*verbs(arguments._parser())}
    assert {verb.partition(" --")[0] for verb in exits.OF_COMMANDS} <= known


def test_no_two_errors_share_a_code() -> None:
    every = [one.code for one in family(XpucachedError)]

    assert len(set(every)) == len(every)


def problem_codes(source: str) -> set[str]:
    """Return the codes of the problems that a module can report.

    That is the first argument of ``Problem(…)``; where that is a parameter of the function around it, what the
    module's calls of that function give; and, as the probe reports them, the first of three texts.
    """
    tree = ast.parse(source)
    places = {"Problem": 0}
    for outer in ast.walk(tree):
        if isinstance(outer, ast.FunctionDef):
            parameters = [one.arg for one in outer.args.args]
            for argument in handed(outer, "Problem", 0):
                if isinstance(argument, ast.Name) and argument.id in parameters:
                    places[outer.name] = parameters.index(argument.id)
    found = {text for name, place in places.items() for one in handed(tree, name, place) if (text := literal(one))}
    for node in ast.walk(tree):
        if isinstance(node, ast.Tuple) and len(node.elts) == PROBED and all(map(is_text, node.elts)):
            found |= {text for one in node.elts[:1] if (text := literal(one)) and CODE.fullmatch(text)}
    return found


PROBED: Final = len(("code", "message", "hint"))
CODE: Final = re.compile(r"[a-z]+(?:-[a-z]+)+")


def handed(tree: ast.AST, function: str, place: int) -> Iterator[ast.expr]:
    """Yield what each call of a function hands it at one place."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == function:
            yield from node.args[place : place + 1]


def is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or literal(node) is not None


def literal(node: ast.expr) -> str | None:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def test_problem_codes_are_found_however_they_are_reported() -> None:
    source = """
def f(code, what):
    return Problem(code, f"{what}")

def g(x):
    f("by-the-way", "…")
    x.append(("in-three-texts", f"{x}", "hint"))
    x.append(("no code", "with blanks", ""))
    return Problem("plain", "…"), Other("none", "…")
"""

    assert problem_codes(source) == {"plain", "by-the-way", "in-three-texts"}


def test_every_problem_is_in_the_manual_and_no_other() -> None:
    sources = [path.read_text(encoding="utf-8") for path in PACKAGE.rglob("*.py")]
    there = {code for source in sources for code in problem_codes(source)}

    assert sorted(first(rows(section(page("docs/operations.md"), "Problems")))) == sorted(there)


def verbs(parser: argparse.ArgumentParser, before: str = "") -> Iterator[str]:
    """Yield every command that a command line can have, as it is typed."""
    inner = [one for one in parser._actions if isinstance(one, argparse._SubParsersAction)]
    for action in inner:
        for name, child in action.choices.items():
            yield from verbs(child, f"{before} {name}".strip())
    if before and not inner:
        yield before


def test_every_command_is_in_the_manual_and_no_other() -> None:
    told = [code.removeprefix("xpucachectl ") for code in first(rows(section(page("docs/operations.md"), "Commands")))]

    assert sorted(told) == sorted(verbs(arguments._parser()))
    assert set(told) == {
        *commands.COMMANDS,
        *bundles.ORDERS,
        *fleet.COMMANDS,
        "inspect",
        "setup",
        "run",
        "trace",
        "completion",
    }


@pytest.mark.parametrize(
    "name", ["README.md", "docs/operations.md", "docs/kinds.md", "docs/configuration.md", "docs/fleet.md"]
)
def test_every_command_line_that_a_page_shows_can_be_typed(name: str) -> None:
    text = page(name)
    shown = [code for code in codes(text) if code.startswith("xpucachectl ")]
    shown += [
        line.split("  #")[0].split(" || ")[0].split(" > ")[0].strip()
        for block in re.findall(r"^```sh\b[^\n]*\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
        for line in block.splitlines()
        if line.startswith("xpucachectl ")
    ]
    # Words in capitals stand for something; a list of verbs (`model add`, `list`) is not a line.
    for line in shown:
        words = [SAMPLES.get(word.rstrip("…"), word) for word in line.split()[1:]]
        if (
            words[0].isupper()
            or (words[0] == "bundle" and len(words) == 2)
            or words
            in (
                ["model", "add"],
                ["show"],
                ["why"],
                ["inspect"],
                ["model", "history"],
                ["fleet", "diff"],
                ["completion"],
            )
        ):
            continue
        arguments.parse(words)

    assert shown


SAMPLES: Final = {
    "NAME": "llama",
    "REF": "0123456789ab",
    "MODEL": "llama",
    "PLAN": "0123456789ab",
    "ID": "scan-1",
    "UNIT": "app.service",
}


def test_every_word_of_a_status_is_explained() -> None:
    text = section(page("docs/operations.md"), "What `status` says")

    def told(title: str) -> list[str]:
        # The first table below the heading itself, not those of the headings below.
        return first(rows(section(text, title).split("\n#")[0]))

    def there(words: type[StrEnum]) -> list[str]:
        return sorted(map(str, words))

    assert sorted(first(rows(text.split("\n#")[0]))) == there(Verdict)
    assert sorted(told("Models")) == there(Warmth)
    assert sorted(told("Stores")) == there(StoreState)
    assert sorted(told("Entries")) == there(EntryState)
    assert sorted(told("Workers")) == there(WorkerState)
    assert sorted(told("Jobs")) == there(JobState)
    assert sorted(told("Replays")) == there(NoRecipe)
    assert sorted(told("Why a model is cold")) == there(WarmReason)
    assert sorted(told("Faults of a store")) == sorted(one.code for one in sycl.defects.FAULTS)
    assert set(map(str, Outcome)) <= set(codes(section(text, "Models")))
    assert set(map(str, StoreOrigin)) <= set(codes(section(text, "Stores")))
    assert set(map(str, EvictReason)) <= set(codes(section(text, "Entries")))
    assert set(map(str, [*DropReason, *RepairAction])) <= set(codes(section(text, "The trash")))


ELSEWHERE: Final = {
    "Binaries": "bundles",
    "BundleContent": "bundles",
    "CodeForm": "inspect",
    "Availability": "inspect",
    "Added": "protocol",
    "Cause": "advice",
    "Compression": "bundles",
    "CostSource": "looking",
    "MetricsFormat": "protocol",
    "Effect": "kinds",
    "Figure": "protocol",
    "ImageFormat": "protocol",
    "Loader": "models",
    "RunCause": "advice",
    "Origin": "protocol",
    "RanOn": "models",
    "RecipeState": "protocol",
    "ReplayReason": "protocol",
    "Safety": "advice",
    "TimedUnit": "protocol",
    "Unproven": "protocol",
    "WatchMode": "design",
}
"""What is explained on another page than the manual of operations."""


def words_of_the_domain() -> Iterator[type[StrEnum]]:
    for one in pkgutil.walk_packages(domain.__path__, "xpucached.domain."):
        for found in vars(importlib.import_module(one.name)).values():
            # `FileAct` is said between two processes of ours, `Role` stands in the catalog: none is in any answer.
            if (
                isinstance(found, type)
                and issubclass(found, StrEnum)
                and found.__module__ == one.name
                and found not in {FileAct, Role}
            ):
                yield found


@pytest.mark.parametrize("words", [*words_of_the_domain()], ids=lambda words: words.__name__)
def test_every_word_of_the_domain_is_explained_somewhere(words: type[StrEnum]) -> None:
    where = ELSEWHERE.get(words.__name__, "operations")

    assert set(map(str, words)) <= set(codes(page(f"docs/{where}.md")))


def test_the_statuses_of_the_check_are_in_the_manual() -> None:
    text = section(page("docs/operations.md"), "For monitoring")
    told = [(codes(state)[0], int(status)) for state, status, *_ in rows(text)]
    named = {code for _, _, when, _ in rows(text) for code in codes(when)}

    assert told == [(str(state), int(level)) for state, level in LEVELS.items()]
    assert {code for code in PROBLEMS if not code.startswith("probe-")} <= named
    assert all(f"{int(level)} ({level.name})" in text for level in Level)


# -- kinds.md -------------------------------------------------------------------------------------------------------


def test_every_kind_has_a_section() -> None:
    text = page("docs/kinds.md")

    assert re.findall(r"^## `(\w+)`", text, re.MULTILINE) == list(KINDS)


def test_every_part_of_a_kind_is_in_the_manual() -> None:
    parts = [one.name for one in fields(Kind) if one.name != "name"]
    told = first(rows(section(page("docs/kinds.md"), "Adding a kind")))

    assert told == parts


@pytest.mark.parametrize(
    "part", [one for one in fields(Kind) if one.name not in {"name", "defects"}], ids=lambda part: part.name
)
def test_all_that_a_part_of_a_kind_is_asked_is_in_the_manual(part: Field[object]) -> None:
    protocol = getattr(interface, str(part.type).partition(" ")[0])
    (asked,) = [row[1] for row in rows(section(page("docs/kinds.md"), "Adding a kind")) if row[0] == f"`{part.name}`"]

    assert sorted(codes(asked)) == sorted(name for name in vars(protocol) if not name.startswith("_"))


def defect_table() -> list[list[str]]:
    return [row for row in rows(section(page("docs/kinds.md"), "Damage")) if len(row) > 2]


def test_every_defect_is_in_the_manual_with_its_effect() -> None:
    """`make man` writes it."""
    (told,) = doc_tables.DEFECTS.findall(page("docs/kinds.md"))

    assert told == doc_tables.defect_table(told)


def test_a_new_defect_comes_into_the_manual_with_its_own_words() -> None:
    (told,) = doc_tables.DEFECTS.findall(page("docs/kinds.md"))
    without = "".join(line for line in told.splitlines(keepends=True) if "`src-fifo`" not in line)
    gone = f"{told}| `gone` | `dead` | what was | tried |\n"

    assert (
        "| `src-fifo` | `hangs` | the source is a named pipe: the application hangs | |\n"
        in doc_tables.defect_table(without)
    )
    assert doc_tables.defect_table(gone) == told


def test_every_effect_is_explained() -> None:
    told = first([row for row in rows(section(page("docs/kinds.md"), "Damage")) if len(row) == 2])

    assert sorted(told) == sorted(map(str, Effect))


def test_the_manual_says_tried_where_a_real_runtime_is_shown_the_damage() -> None:
    told = {row[0].strip("`") for row in defect_table() if row[-1] == "tried"}

    assert told == {defect.code for row in damage.ROWS for defect in row.defects.values() if defect is not None}


# -- the other pages ------------------------------------------------------------------------------------------------


def test_every_setting_is_in_its_section_of_the_manual() -> None:
    manual = page("docs/configuration.md")

    for key in keys():
        assert key.name in first(rows(section(manual, f"`[{key.section}]`"))), key


def test_every_request_is_in_the_manual() -> None:
    told = [code for row in rows(section(page("docs/protocol.md"), "Requests")) for code in codes(row[0])]

    assert sorted(told) == sorted(f"{one.method} {one.path}" for one in requests.ENDPOINTS)


def test_the_tables_of_requests_are_those_that_are_declared() -> None:
    """`make man` writes it."""
    assert doc_tables.REQUESTS.findall(page("docs/protocol.md")) == doc_tables.request_tables()


# -- blocks of a shell ----------------------------------------------------------------------------------------------


def unmarked(found: Iterable[documents.Block]) -> list[str]:
    """Name the blocks of a shell of which nobody knows who types them: root, a user, or a person, with the reason."""
    commands = re.compile(
        r"^(sudo |xpucachectl |xpucached |systemctl |apt(-get)? |pip |make |journalctl |podman |docker |eval |\$ )",
        re.MULTILINE,
    )
    return [
        f"{one.page}: {one.heading}: {one.text.splitlines()[0]}"
        for one in found
        if (one.language in documents.SHELLS or (one.language not in documents.DATA and commands.search(one.text)))
        and one.marker not in {"root", "user", *[documents.PRINTED] * (one.language not in documents.SHELLS)}
        and not (one.marker.startswith(documents.BY_HAND) and len(one.marker) > len(documents.BY_HAND))
    ]


def test_each_block_of_a_shell_says_who_types_it() -> None:
    """A machine types those of root and users: `tests/system/test_deb.py`."""
    assert unmarked(one for name in documents.pages() for one in documents.blocks(name)) == []
    assert len(documents.to_type()) > TYPED_AT_LEAST


TYPED_AT_LEAST: Final = 15


def test_a_block_that_says_nothing_is_found() -> None:
    blocks = [
        documents.Block("a.md", "A", "sh", marker, "true\n")
        for marker in ("", "root", "user", "by hand: ", "by hand: x", "printed")
    ]
    blocks += [
        documents.Block("a.md", "B", language, marker, text)
        for text in ("xpucachectl status\n", "of 3 models\n")
        for language, marker in (("", ""), ("text", ""), ("text", "printed"), ("ini", ""))
    ]

    assert unmarked(blocks) == ["a.md: A: true"] * 3 + ["a.md: B: xpucachectl status"] * 2


def test_no_command_waits_without_end_for_what_users_can_hold_up() -> None:
    """A worker is its user's program, which can have systemd grant it any time to end."""
    texts = [(REPOSITORY / name).read_text(encoding="utf-8") for name in documents.pages()]
    texts += [path.read_text(encoding="utf-8") for path in (REPOSITORY / "systemd/examples").iterdir()]
    found = re.findall(r"(timeout \d+ |)systemctl (\S+) [^|&`\n]*xpucached-worker@\*", "\n".join(texts))

    assert {verb for _, verb in found} == {"stop", "kill", "--no-block"}
    assert all(bound for bound, verb in found if verb == "stop")


def test_a_block_removes_nothing_where_what_stands_before_it_failed() -> None:
    """Who types it, or pastes it twice, is not stopped by what failed, and nobody has no number."""
    removing = [one for one in documents.to_type() if re.search(r"\brm -", one.text)]
    for one in removing:
        assert not re.search(r"(?<!&& )(?<!&& \{\n)\brm -", re.sub(r" *(#.*)?\n *", "\n", one.text)), one.text
        assert not re.search(r"\brm -[^\n&|]*\$(?!\{\w+:\?\})", one.text), one.text

    assert removing


def test_each_block_of_data_is_read_by_what_it_is_for(tmp_path: Path) -> None:
    """Units and drop-ins are systemd's to read, and the Dockerfile is buildah's: `tests/system`."""
    found = [one for name in documents.pages() for one in documents.blocks(name)]
    for number, one in enumerate(found):
        if one.language == "json":
            assert all(json.loads(line) for line in one.text.splitlines())
        elif one.language == "toml":
            place = tmp_path / str(number)
            place.mkdir()
            file = place / "one.toml"
            file.write_text(one.text.replace("alice", "root"), encoding="utf-8")
            if "[" in {line[:1] for line in one.text.splitlines()}:
                environ = {"HOME": str(place), "XDG_RUNTIME_DIR": str(place)}
                loading.load(file, user=not one.text.startswith("# /etc"), environ=environ)
            else:
                (model,), problems = model_files.models(place)
                assert (model.name, problems) == ("one", ())
    assert {one.language for one in found} - documents.SHELLS <= {*documents.DATA, "text", ""}


# -- design.md, and what leads to it --------------------------------------------------------------------------------

REFERENCE: Final = re.compile(r"(?P<path>[\w./@-]+\.(?:md|path|py|service|socket))(?::(?P<name>[\w.]+))?")
"""A file as it is named for those who look for something, ``path`` or ``path:name``."""


def file_of(path: str) -> Path | None:
    """Return the file of the repository that is meant; ``xpucached/`` may be left out."""
    return next((one for one in (REPOSITORY / path, PACKAGE / path) if one.is_file()), None)


def has(source: str, name: str) -> bool:
    """Return whether a module defines a name; ``Class.member`` is looked for in the class."""
    inside: list[ast.stmt] = ast.parse(source).body
    for part in name.split("."):
        found = [one for one in inside if part in defined(one)]
        inside = [inner for one in found if isinstance(one, ast.ClassDef) for inner in one.body]
        if not found:
            return False
    return True


def defined(node: ast.stmt) -> list[str]:
    """Return the names that a statement defines."""
    if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        return [node.name]
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return [one.id for one in targets if isinstance(one, ast.Name)]


def astray(text: str) -> list[str]:
    """Name every file, and every name in one, that a text gives in backticks and that is not there."""
    found: list[str] = []
    for code in codes(re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)):
        match = REFERENCE.fullmatch(code)
        if match is None:
            # A path that is written any other way would not be looked at.
            found += [code] if re.search(r"\.py\b", code) and " " not in code else []
            continue
        path = file_of(match["path"])
        if path is None or (match["name"] and not has(path.read_text(encoding="utf-8"), match["name"])):
            found.append(code)
    return found


@pytest.mark.parametrize("name", ["docs/design.md", "CONTRIBUTING.md"])
def test_every_file_and_name_that_leads_into_the_code_is_there(name: str) -> None:
    assert astray(page(name)) == []


def test_a_file_or_name_that_is_not_there_is_found() -> None:
    there = ["kinds/interface.py:Discovery.OFF", "xpucached/errors.py", "tests/test_docs.py:astray", "docs/design.md"]
    gone = ["kind/__init__.py", "kinds/table.py:Kinds", "kinds/interface.py:Kind.nothing", "docs/plan.md", "a.py::b"]

    assert astray(" ".join(f"`{one}`" for one in there + gone)) == gone


def test_the_picture_of_the_rooms_is_the_map() -> None:
    floor, shown = "", dict[str, int]()
    for line in section(page("docs/design.md"), "The rooms").split("```")[1].strip("\n").splitlines():
        floor = line[:1].strip() or floor
        shown[line[1:].split()[0]] = int(floor)

    assert shown == FLOORS


# -- links, and every page ------------------------------------------------------------------------------------------


def anchors(text: str) -> set[str]:
    """Return the names that a page's headings can be linked by, as the usual hosts make them."""
    text = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    heads = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_links_lead_somewhere(path: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", path.read_text(encoding="utf-8")):
        if target.startswith("https://"):
            continue
        file, _, anchor = target.partition("#")
        there = path.parent / file if file else path
        assert there.is_file(), target
        assert there.is_relative_to(REPOSITORY), target
        if anchor:
            assert anchor in anchors(there.read_text(encoding="utf-8")), target


def test_a_link_to_a_heading_is_spelled_as_it_is_shown() -> None:
    assert anchors("# What `x` says\n\n```sh\n# no heading\n```\n## It's a: b-c") == {"what-x-says", "its-a-b-c"}


def test_every_page_can_be_reached_from_the_readme() -> None:
    reached: set[Path] = set()
    ahead = [REPOSITORY / "README.md"]
    while ahead:
        path = ahead.pop()
        if path not in reached and path.suffix == ".md":
            reached.add(path)
            found = re.findall(r"\]\(([^)\s#]+)[^)\s]*\)", path.read_text(encoding="utf-8"))
            ahead += [(path.parent / target).resolve() for target in found if not target.startswith("https:")]

    assert reached == set(PAGES)


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_a_page_is_written_for_its_readers(path: Path) -> None:
    text = path.read_text(encoding="utf-8")

    assert [word for word in FORBIDDEN_WORDS if word in text] == []
    assert [line for line in text.splitlines() if len(line) > WIDTH and not line.startswith("|")] == []


WIDTH: Final = 125
