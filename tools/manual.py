"""Write the man pages, the shells' completions, the example of a configuration, and the table in docs/protocol.md.

Usage: ``python tools/manual.py [DIRECTORY]`` (``xpucached/data/manual``, from where the wheel takes them)

The pages of the commands are made from their parsers, those of the files from ``docs/configuration.md`` and
``docs/models.md``, which the tests compare with the program.  So there is one place for each sentence.  Needs the
packages of ``xpucached[manual]``; the program itself never does.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import sys
import textwrap
import tomllib
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import doc_tables
import source_date
from argparse_manpage.manpage import Manpage
from completions import COMPLETIONS, below, completions
from docutils.core import publish_string
from myst_parser.parsers.docutils_ import Parser

from xpucached import __version__
from xpucached.cli import arguments, examples, exits
from xpucached.daemon import main as daemon

ROOT: Final = Path(__file__).resolve().parent.parent
TARGET: Final = ROOT / "xpucached" / "data" / "manual"
GROUPS: Final = {
    "bundle": "take compiled kernels to other hosts",
    "fleet": "compare hosts by what decides about compiled kernels",
    "model": "register, list, show and remove models",
    "trash": "list, restore and empty what was evicted",
}
"""Commands that have commands below them, and what these are for; each has a page of its own."""
PAGES: Final = (
    *("xpucached.8", "xpucachectl.1", "xpucached.toml.5", "xpucached-models.5"),
    *(f"xpucachectl-{one}.1" for one in GROUPS),
)
EXAMPLE: Final = "xpucached.toml"

_WIDTH: Final = 160
"""Columns: man breaks lines itself, and of what argparse breaks at a hyphen a blank would stay."""
_MANUAL: Final = "SYCL kernel caches"


# -- what the pages in docs say -------------------------------------------------------------------------------------


def page(name: str) -> str:
    """Return a page of ``docs``."""
    return (ROOT / "docs" / name).read_text(encoding="utf-8")


def section(text: str, title: str) -> str:
    """Return what stands below a heading, up to the next one of its level or above."""
    found: list[str] = []
    level, fenced = 0, False
    for line in text.splitlines():
        fenced ^= line.startswith("```")
        head = None if fenced else re.match(r"(#+) (.*)", line)
        if head is not None and level and len(head[1]) <= level:
            break
        if level:
            found.append(line)
        elif head is not None and head[2] == title:
            level = len(head[1])
    if not level:
        raise SystemExit(f"docs: no heading {title!r}")
    return "\n".join(found).strip() + "\n"


def table(text: str) -> list[dict[str, str]]:
    """Return the rows of the first table in a text, by the heads of their columns."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    if not lines:
        return []
    heads = _cells(lines[0])
    return [dict(zip(heads, _cells(line), strict=True)) for line in lines[2:]]


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip().strip("|"))]


def _defined(match: re.Match[str]) -> str:
    """Turn a table into a list of terms: a terminal is too narrow for four columns."""
    found = []
    for row in table(match[0]):
        (_, term), *rest = row.items()
        cells = [(head, cell) for head, cell in rest if cell]
        # What it means comes first, whatever the order of the columns.
        cells.sort(key=lambda cell: cell[0] not in {"meaning", "means", "what it does"})
        plain = {"meaning", "means", "what it does"} if len(rest) > 1 else set(row)
        words = [cell if head in plain else f"{head[:1].upper()}{head[1:]}: {cell}" for head, cell in cells]
        text = " ".join(one if one.endswith((".", ":")) else f"{one}." for one in words)
        found.append(f"{term}\n: {text}\n" if text else f"{term}\n: .\n")
    return "\n".join(found) + "\n"


_TABLE: Final = re.compile(r"(?:^\|.*\n)+", re.MULTILINE)


def prepare(text: str) -> str:
    """Turn a piece of ``docs`` into what a man page can hold: no links, no tables."""
    text = re.sub(r"\[([^\]]*)\]\([^)\s]*\)", r"\1", text)
    return _TABLE.sub(_defined, text if text.endswith("\n") else text + "\n")


# -- man pages ------------------------------------------------------------------------------------------------------


def _roff(text: str) -> tuple[str, str]:
    """Return the macros that a body needs, and the body."""
    settings = {
        "myst_enable_extensions": ["deflist"],
        "output_encoding": "unicode",
        "report_level": 2,
        "halt_level": 2,
    }
    made = publish_string(prepare(text), parser=Parser(), writer="manpage", settings_overrides=settings)
    written = made if isinstance(made, str) else made.decode("utf-8")
    head, _, rest = written.partition(".TH ")
    body = rest.partition(" \\- \n")[2]
    return head, body.replace('.\\" End of generated man page.\n', "").strip() + "\n"


def _sections(parts: dict[str, str]) -> str:
    # What stands below a chapter there stands below a section here, one step higher.
    found = []
    for title, text in parts.items():
        shown = title if "`" in title else title.upper()
        found.append(f"# {shown}\n\n" + re.sub(r"^##+ ", "## ", text, flags=re.MULTILINE))
    return "\n".join(found)


def _date() -> str:
    return datetime.fromtimestamp(source_date.seconds(), UTC).date().isoformat()


def file_page(name: str, number: int, what: str, parts: dict[str, str]) -> str:
    """Write the page of a file."""
    macros, body = _roff(_sections(parts))
    heading = name.upper().replace("-", r"\-")
    title = f'.TH {heading} "{number}" "{_date()}" "xpucached {__version__}" "{_MANUAL}"'
    return f"{macros}{title}\n.SH NAME\n{name} \\- {what}\n{body}"


def command_page(parser: argparse.ArgumentParser, number: int, what: str, parts: dict[str, str]) -> str:
    """Write the page of a command: its options from its parser, then further sections."""
    macros, body = _roff(_sections(parts))
    data = {
        "project_name": "xpucached",
        "version": __version__,
        "manual_section": str(number),
        "manual_title": _MANUAL,
        "description": what,
        "date": _date(),
    }
    made = str(Manpage(parser, data, format="single-commands-section"))
    # A page is found by one word.
    for word in (parser.prog.upper(), parser.prog):
        made = made.replace(word, word.replace(" ", r"\-"), 1)
    return macros + "\n".join(_tidy(made.replace("POSITIONAL ARGUMENTS", "COMMANDS"))) + "\n" + body


def _tidy(text: str) -> list[str]:
    # An empty line is a paragraph's end, for which there is a macro.
    return [line.removeprefix("usage: ") or ".PP" for line in text.rstrip("\n").split("\n")]


def pages() -> dict[str, str]:
    """Write all pages, by the names of their files."""
    # argparse breaks its lines for the terminal that it finds.
    os.environ["COLUMNS"] = str(_WIDTH)
    settings, models, manual = page("configuration.md"), page("models.md"), page("operations.md")
    files = section(manual, "Files")
    errors = section(manual, "Errors")
    chapters = re.findall(r"^## (`\[\w+\]`)$", settings, re.MULTILINE)
    return {
        "xpucached.8": command_page(
            daemon.parser(),
            8,
            "look after the SYCL kernel caches of a host",
            {
                "The daemon": section(manual, "The daemon"),
                "Files": files,
                "Environment": section(manual, "Variables of the daemon"),
                "Problems": section(manual, "Problems"),
                "Examples": _listing("xpucached --user", "xpucached --check --config xpucached.toml"),
                "Exit status": errors,
                "See also": _ALSO.format("xpucachectl(1), xpucached.toml(5), xpucached-models(5), systemd(1)"),
            },
        ),
        "xpucachectl.1": command_page(
            _client(),
            1,
            "ask and tell the daemon that keeps SYCL kernel caches warm",
            {
                "What status says": section(manual, "What `status` says"),
                "Environment": section(manual, "Variables of the client"),
                "Files": files,
                "Exit status": errors + "\n" + section(manual, "What commands end with"),
                "Examples": _listing(*(line for lines in examples.EXAMPLES.values() for line in lines)),
                "See also": _ALSO.format(f"xpucached(8), xpucached.toml(5), xpucached-models(5), {_groups('')}"),
            },
        ),
        **{f"xpucachectl-{group}.1": _group_page(group, what) for group, what in GROUPS.items()},
        "xpucached.toml.5": file_page(
            "xpucached.toml",
            5,
            "the configuration of xpucached",
            {
                "Where it is read from": section(settings, "Where it is read from"),
                "How it is written": section(settings, "How it is written"),
                **{title: section(settings, title) for title in chapters},
                "Examples": _listing("[policy]", 'max_bytes = "20GiB"', "[schedule]", "evict = false"),
                "See also": _ALSO.format("xpucached(8), xpucachectl(1), xpucached-models(5)"),
            },
        ),
        "xpucached-models.5": file_page(
            "xpucached-models",
            5,
            "the models that xpucached keeps warm",
            {
                "Model files": section(settings, "Model files"),
                **{title: section(models, title) for title in _ABOUT_MODELS},
                "Examples": _fenced(section(settings, "Model files")),
                "See also": _ALSO.format("xpucached(8), xpucachectl(1), xpucached.toml(5)"),
            },
        ),
    }


def _group_page(group: str, what: str) -> str:
    """Write the page of a command that has others below it."""
    parser = next(one for one in below(_client()) if one.prog == f"xpucachectl {group}")
    shown = [line for verb, lines in examples.EXAMPLES.items() if verb.split()[0] == group for line in lines]
    ends = (
        f"| `{verb}` | {status} | {why} |"
        for verb, found in exits.OF_COMMANDS.items()
        for status, why in found.items()
        if verb.split()[0] == group
    )
    words = [
        "As xpucachectl(1) says of all commands, and:",
        "",
        "| command | exit status | meaning |",
        "| --- | --- | --- |",
    ]
    return command_page(
        parser,
        1,
        what,
        {
            "Examples": _listing(*shown),
            "Exit status": "\n".join([*words, *ends, ""]),
            "See also": _ALSO.format(f"xpucachectl(1), xpucached-models(5), {_groups(group)}"),
        },
    )


def _groups(without: str) -> str:
    return ", ".join(f"xpucachectl-{one}(1)" for one in GROUPS if one != without)


def _listing(*lines: str) -> str:
    """Return lines that are shown as they are."""
    return "\n".join(("```", *lines, "```\n"))


def _fenced(text: str) -> str:
    """Return the first piece of a text that is shown as it is."""
    return _listing(*text.partition("```toml\n")[2].partition("\n```")[0].splitlines())


_ALSO: Final = "{}\n\nThe whole manual is in `/usr/share/doc/xpucached` or in `docs` of the sources.\n"
_ABOUT_MODELS: Final = ("Loaders", "Inputs", "Variants", "What is proven", "What a model cannot do")


def _client() -> argparse.ArgumentParser:
    """Return the client's parser, each command without the common options, which stand at the top once."""
    parser = arguments._parser()  # noqa: SLF001 - only this program and the tests look at it from outside
    for one in below(parser):
        (common,) = [group for group in one._action_groups if group.title == "common options"]  # noqa: SLF001 - see _below
        gone = {*common._group_actions, *(action for action in one._actions if action.dest == "help")}  # noqa: SLF001
        one._action_groups.remove(common)  # noqa: SLF001 - argparse has no other way to take a group away
        one._actions = [action for action in one._actions if action not in gone]  # noqa: SLF001 - the same
        one.usage = " ".join(one.format_usage().split()[1:]).replace("%", "%%")
        # It says the same as the line in the list of commands.
        one.description = None
    return parser


# -- the example ----------------------------------------------------------------------------------------------------


def example() -> str:
    """Write a configuration in which every key stands, with its meaning, and nothing is set."""
    text = page("configuration.md")
    lines = ["# The configuration of xpucached, see xpucached.toml(5).  Everything has a default, which stands here."]
    for title in re.findall(r"^## `(\[\w+\])`$", text, re.MULTILINE):
        lines += ["", title]
        for row in table(section(text, f"`{title}`")):
            key, default = row["key"].strip("`"), row["default"]
            words = re.sub(r"\[([^\]]*)\]\([^)\s]*\)", r"\1", row["meaning"]).replace("`", "")
            value = re.fullmatch(r"`([^`]+)`", default)
            literal = value[1] if value else ""
            if not literal or not _is_toml(literal):
                words += f" (Default: {default.replace('`', '')}.)"
                literal = "…"
            lines += ["", *textwrap.wrap(words, 100, initial_indent="# ", subsequent_indent="# ")]
            lines.append(f"#{key} = {literal}")
    return "\n".join(lines) + "\n"


def _is_toml(literal: str) -> bool:
    try:
        tomllib.loads(f"x = {literal}")
    except tomllib.TOMLDecodeError:
        return False
    return True


# -- the whole ------------------------------------------------------------------------------------------------------


def write(target: Path) -> None:
    """Write everything into a directory of its own."""
    shutil.rmtree(target, ignore_errors=True)
    made = {f"man/{name}": text for name, text in pages().items()}
    for shell in COMPLETIONS:
        made |= {f"completions/{name}": text for name, text in completions(shell).items()}
    made[EXAMPLE] = example()
    for name, text in made.items():
        path = target / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def main() -> int:
    """Write where the command line says."""
    options = argparse.ArgumentParser(description="Write man pages, completions and an example configuration.")
    options.add_argument("target", nargs="?", type=Path, default=TARGET, metavar="DIRECTORY")
    write(options.parse_args().target)
    for name, renew in (("protocol.md", doc_tables.with_requests), ("kinds.md", doc_tables.with_defects)):
        (ROOT / "docs" / name).write_text(renew(page(name)), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
