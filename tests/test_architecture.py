"""The rules of the house, read from the syntax trees: floors, purity, homes of packages, and words that stay out."""

from __future__ import annotations

import ast
import functools
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

import xpucached
from tests import REPOSITORY
from xpucached.catalog import tables

if TYPE_CHECKING:
    from collections.abc import Iterator

PACKAGE: Final = REPOSITORY / "xpucached"

CLI_MAY_KNOW: Final = {
    "api",
    "answers",
    "codec",
    "domain",
    "errors",
    "inspection",
    "messages",
    "mounts",
    "options",
    "printing",
    "processes",
    "quantities",
    "render",
    "sockets",
    "streams",
    "tracing",
}

# What clients know of the kinds, which they do not load: a file of constants.
CLI_MODULES: Final = {"xpucached.kinds.variables"}

# `python -m xpucached` is the daemon: a door that leads to a room on its own floor.  Sockets are guarded by children.
SAME_FLOOR: Final = {("__main__", "daemon"), ("sockets", "guarded"), ("guarded", "processes")}

PURE: Final = {"answers", "codec", "domain", "errors", "messages", "planning", "printing", "quantities", "render"}

# Whose first use of a type must be nobody else's at the same time.
LOCKS: Final = {("codec", "threading")}

# What a pure room may import: no clock, no files, no randomness, no logging in any of these.
PURE_MODULES: Final = {
    "__future__",
    "bisect",
    "collections",
    "dataclasses",
    "datetime",
    "difflib",
    "enum",
    "fnmatch",
    "functools",
    "hashlib",
    "heapq",
    "itertools",
    "json",
    "math",
    "msgspec",
    "operator",
    "pathlib",
    "re",
    "shlex",
    "statistics",
    "string",
    "textwrap",
    "types",
    "typing",
    "unicodedata",
}

# What those modules offer nevertheless that looks at the outside.
IMPURE_CALLS: Final = {
    "cwd",
    "exists",
    "expanduser",
    "glob",
    "home",
    "input",
    "is_dir",
    "is_file",
    "iterdir",
    "lstat",
    "mkdir",
    "now",
    "open",
    "print",
    "read_bytes",
    "read_text",
    "resolve",
    "rglob",
    "rmdir",
    "stat",
    "today",
    "touch",
    "unlink",
    "utcnow",
    "write_bytes",
    "write_text",
}


def read_map(text: str) -> dict[str, int]:
    """Read the floors from the map in the package's docstring: room to floor."""
    return {
        room.strip(): int(match["floor"])
        for match in re.finditer(r"^ {4}(?P<floor>\d) +(?P<rooms>\S.*)$", text, re.MULTILINE)
        for room in match["rooms"].split("·")
    }


FLOORS: Final = read_map(xpucached.__doc__ or "")


HOMES: Final = {
    "alembic": {"catalog", "migrations"},
    "apscheduler": {"daemon"},
    "backports": {"bundle"},
    "bitsandbytes": {"libexec"},
    "cryptography": {"bundle"},
    "diffusers": {"libexec"},
    "gptqmodel": {"libexec"},
    "h11": {"server"},
    "intel_extension_for_pytorch": {"libexec"},
    # Whoever holds values; not what is loaded by itself: children, the watcher, the shortest way to the status.
    "msgspec": set(FLOORS) - {"libexec", "watchd", "messages", "printing", "sockets", "systemd"},
    "numpy": {"libexec"},
    "psutil": {"host", "processes"},
    "rich": {"cli", "render"},
    "safetensors": {"libexec"},
    "sentence_transformers": {"libexec"},
    "sqlalchemy": {"catalog", "migrations"},
    "starlette": {"server"},
    "torch": {"libexec"},
    "torchao": {"libexec"},
    "transformers": {"libexec"},
    "uvicorn": {"server"},
    "vllm": {"libexec"},
    "watchdog": {"watch"},
    "sitecustomize": {"libexec"},  # what Python looks for at its start
    "xpucached_libexec": {"libexec"},  # the same room, as its programs call it: they are run by their path
}

# The command line answers fast: these are loaded only by the function that needs them.
LATE: Final = {
    "backports",
    "diffusers",
    "intel_extension_for_pytorch",
    "numpy",
    "rich",
    "safetensors",
    "torch",
    "torchao",
    "transformers",
}

# Put together from pieces, so that this file does not contain them.
FORBIDDEN_WORDS: Final = (
    "/" + "work/",
    ".." + "/shared",
    "pypi" + ".org",
    "python" + "hosted.org",
    "deb." + "debian.org",
)


parsed = functools.cache(ast.parse)
"""Several rules look through the same modules."""


@dataclass(frozen=True, slots=True)
class Import:
    """One imported module, wholly named, and whether it is imported inside a function."""

    module: str
    line: int
    late: bool


def imports(tree: ast.Module, module: str, *, is_package: bool) -> Iterator[Import]:
    """Yield every import of a module; what is under ``TYPE_CHECKING`` counts as well."""
    late = {
        inner
        for outer in ast.walk(tree)
        if isinstance(outer, ast.FunctionDef | ast.AsyncFunctionDef)
        for inner in ast.walk(outer)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(alias.name, node.lineno, node in late)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = module.split(".") if is_package else module.split(".")[:-1]
                kept = parents[: len(parents) - node.level + 1]
                base = ".".join([*kept, base] if base else kept)
            # `from xpucached import domain` names the room only in the list.
            names = [f"{base}.{alias.name}" for alias in node.names] if base == "xpucached" else [base]
            for name in names:
                yield Import(name, node.lineno, node in late)


def room_of(module: str) -> str | None:
    """Return the room that a module of ours belongs to; None for the package itself."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else None


def quarrel(here: str, there: str) -> str | None:
    """Return what is wrong with one room's knowing another."""
    if here == there or (here, there) in SAME_FLOOR:
        return None
    if here == "migrations" or there == "migrations":
        # The migrations are the catalog's: nobody else knows them, and they know only it and what is below it.
        lawful = "catalog" in {here, there} or (here == "migrations" and FLOORS.get(there, 9) < FLOORS["catalog"])
        return None if lawful else f"{here} must not know {there}"
    if there not in FLOORS:
        return f"{there} has no floor"
    if here == "cli" and there not in CLI_MAY_KNOW:
        return f"cli must not know {there}"
    if FLOORS[there] >= FLOORS[here]:
        return f"{here} (floor {FLOORS[here]}) must not know {there} (floor {FLOORS[there]})"
    return None


def violations(source: str, module: str, *, is_package: bool = False) -> list[str]:
    """Name everything in a module that breaks a rule, as ``module:line: what``."""
    tree = parsed(source)
    room = room_of(module)
    if room is None:
        return [
            f"{module}:{one.line}: the map imports nothing"
            for one in imports(tree, module, is_package=True)
            if one.module != "__future__"
        ]
    if room not in FLOORS and room != "migrations":
        return [f"{module}: has no floor"]
    found = [
        f"{module}:{one.line}: {complaint}"
        for one in imports(tree, module, is_package=is_package)
        for complaint in _complaints(one, room)
    ]
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == "__all__" for t in node.targets):
            found.append(f"{module}:{node.lineno}: no __all__: public means without underscore")
        if room in PURE and isinstance(node, ast.Call) and _called(node) in IMPURE_CALLS:
            found.append(f"{module}:{node.lineno}: a pure room must not call {_called(node)}()")
    return found


def _complaints(one: Import, room: str) -> Iterator[str]:
    top = one.module.partition(".")[0]
    if top == "xpucached":
        if room == "cli" and one.module in CLI_MODULES:
            return
        there = room_of(one.module)
        complaint = quarrel(room, there) if there is not None and there != "__version__" else None
        if complaint is not None:
            yield complaint
    elif top in sys.stdlib_module_names:
        if room in PURE and top not in PURE_MODULES and (room, top) not in LOCKS:
            yield f"a pure room must not import {one.module}"
    elif room not in HOMES.get(top, set()):
        yield f"{one.module} is not at home in {room}"
    elif top in LATE and not one.late:
        yield f"{one.module} must be imported inside the function that needs it"


def _called(node: ast.Call) -> str:
    match node.func:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
        case _:
            return ""


def modules() -> Iterator[tuple[str, Path]]:
    """Yield every module of the package, the migrations under their installed name."""
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(REPOSITORY).with_suffix("").parts
        yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), path
    for path in sorted((REPOSITORY / "migrations").rglob("*.py")):
        yield (
            "xpucached." + ".".join(path.relative_to(REPOSITORY).with_suffix("").parts).removesuffix(".__init__"),
            path,
        )


@pytest.mark.parametrize(("module", "path"), [pytest.param(*one, id=one[0]) for one in modules()])
def test_the_module_keeps_the_rules(module: str, path: Path) -> None:
    found = violations(path.read_text(encoding="utf-8"), module, is_package=path.name == "__init__.py")

    assert found == []


def test_every_room_on_the_map_is_there() -> None:
    there = {path.stem if path.suffix else path.name for path in PACKAGE.iterdir() if path.name != "__init__.py"}

    assert set(FLOORS) - there == set()


@pytest.mark.parametrize(
    ("module", "source", "complaint"),
    [
        ("xpucached.domain", "import xpucached.codec", "domain (floor 0) must not know codec (floor 1)"),
        ("xpucached.planning", "from xpucached import catalog", "must not know catalog"),
        ("xpucached.planning", "from xpucached.catalog import Catalog", "must not know catalog"),
        ("xpucached.planning", "from .catalog import Catalog", "must not know catalog"),
        ("xpucached.kinds.sycl.scanner", "from ...service import Service", "must not know service"),
        ("xpucached.host.gpu_devices", "from xpucached import errors, watch", "must not know watch"),
        (
            "xpucached.host.gpu_devices",
            "def f():\n    import xpucached.server",
            "2: host (floor 2) must not know server",
        ),
        ("xpucached.host", "if TYPE_CHECKING:\n    from xpucached import watch", "must not know watch"),
        ("xpucached.cli", "from xpucached import settings", "cli must not know settings"),
        ("xpucached.cli", "from xpucached.kinds import table", "cli must not know kinds"),
        ("xpucached.daemon.user_daemon", "from xpucached import cli", "must not know cli"),
        ("xpucached.service", "from xpucached import utils", "utils has no floor"),
        ("xpucached.service", "from xpucached import migrations", "service must not know migrations"),
        ("xpucached.migrations.env", "from xpucached import planning", "migrations must not know planning"),
        ("xpucached.utils", "", "has no floor"),
        ("xpucached", "import os", "the map imports nothing"),
        ("xpucached.planning", "import time", "must not import time"),
        ("xpucached.render", "import logging", "must not import logging"),
        ("xpucached.planning", "import datetime\nx = datetime.datetime.now()", "2: a pure room must not call now()"),
        ("xpucached.render", "print('x')", "must not call print()"),
        ("xpucached.planning", "import sqlalchemy", "sqlalchemy is not at home in planning"),
        ("xpucached.service", "from watchdog.observers import Observer", "not at home in service"),
        ("xpucached.service", "import requests", "requests is not at home in service"),
        ("xpucached.cli", "from rich.table import Table", "inside the function"),
        ("xpucached.planning", "__all__ = ['x']", "no __all__"),
    ],
)
def test_a_broken_rule_is_found(module: str, source: str, complaint: str) -> None:
    found = violations(source, module)

    assert len(found) == 1
    assert complaint in found[0]


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("xpucached.service", "from xpucached import catalog, planning\nfrom xpucached.domain import Host"),
        ("xpucached.kinds.sycl.scanner", "from .files import read\nfrom xpucached.kinds.sycl import images"),
        ("xpucached.cli", "from xpucached.api import requests\ndef f():\n    from rich.table import Table"),
        ("xpucached.catalog", "import sqlalchemy as sa\nimport xpucached.migrations"),
        ("xpucached.migrations.env", "from alembic import context\nfrom xpucached import catalog, errors"),
        ("xpucached.__main__", "from xpucached import daemon"),
        ("xpucached.cli", "from xpucached.kinds.variables import STORE"),
        ("xpucached.server", "from xpucached import __version__"),
        ("xpucached.domain", "import hashlib\nfrom pathlib import Path"),
    ],
)
def test_a_kept_rule_is_let_pass(module: str, source: str) -> None:
    assert violations(source, module) == []


def test_the_map_is_read() -> None:
    assert read_map("""Map::

    6   daemon · cli
    0   domain
""") == {"daemon": 6, "cli": 6, "domain": 0}


# Where programs are started: one place, and the small parent of a model's child, which is a program of its own.
STARTERS: Final = {
    "xpucached.processes.child",
    "xpucached.libexec.supervisor",
    "xpucached.libexec.loaders.llama_cpp",  # a model's own program, in the model's own process
    "xpucached.libexec.server_runner",
    "xpucached.cli.launching",
}

_STARTING_MODULES: Final = {"subprocess", "multiprocessing", "pty", "concurrent.futures.process", "_posixsubprocess"}
_STARTING: Final = re.compile(
    r"create_subprocess_(exec|shell)|subprocess_(exec|shell)|fork|forkpty|system|popen|startfile|posix_spawnp?"
    r"|exec(l|le|lp|lpe|v|ve|vp|vpe)|spawn(l|le|lp|lpe|v|ve|vp|vpe)|Popen|ProcessPoolExecutor"
)


def starts(source: str, module: str) -> list[str]:
    """Name every place in a module that starts a program, or could."""
    if module in STARTERS:
        return []
    tree = parsed(source)
    found = [
        f"{module}:{one.line}: {one.module}"
        for one in imports(tree, module, is_package=False)
        if one.module in _STARTING_MODULES
    ]
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and _STARTING.fullmatch(node.attr) and _names_os(node.value):
            found.append(f"{module}:{node.lineno}: {node.attr}")
        if isinstance(node, ast.ImportFrom) and node.module in {"os", "posix", "asyncio", "concurrent.futures"}:
            found += [
                f"{module}:{node.lineno}: {alias.name}" for alias in node.names if _STARTING.fullmatch(alias.name)
            ]
    return found


def _names_os(node: ast.expr) -> bool:
    return not isinstance(node, ast.Name) or node.id in {"os", "posix", "asyncio", "loop", "futures"}


def test_programs_are_started_in_one_place() -> None:
    found = [line for module, path in modules() for line in starts(path.read_text(encoding="utf-8"), module)]

    assert found == []


@pytest.mark.parametrize(
    "source",
    [
        "import subprocess",
        "from subprocess import run",
        "def late():\n    import multiprocessing",
        "import os\nos.system('true')",
        "import os\nos.fork()",
        "from os import execve",
        "import asyncio\nasyncio.create_subprocess_exec('true')",
        "asyncio.get_running_loop().subprocess_exec(None)",
        "from concurrent.futures import ProcessPoolExecutor",
    ],
)
def test_a_second_way_to_start_a_program_is_found(source: str) -> None:
    assert starts(source, "xpucached.somewhere") != []
    assert starts(source, "xpucached.processes.child") == []


def test_what_starts_nothing_is_let_pass() -> None:
    source = "from xpucached.processes import child\nchild.run(['true'])\nself.system('x')"
    assert starts(source, "xpucached.host") == []


def first_words(source: str, module: str) -> list[str]:
    """Name every place in a module that takes a word of a model's command: a model with a loader has none."""
    return [
        f"{module}:{node.lineno}: {ast.unparse(node)}; see Workload.program"
        for node in ast.walk(parsed(source))
        if isinstance(node, ast.Subscript)
        and not isinstance(node.slice, ast.Slice)
        and ast.unparse(node.value).endswith("workload.command")
    ]


def test_no_model_is_taken_to_have_a_command() -> None:
    found = [line for module, path in modules() for line in first_words(path.read_text(encoding="utf-8"), module)]

    assert found == []


@pytest.mark.parametrize("source", ["workload.command[0]", "model.workload.command[-1]", "self._workload.command[0]"])
def test_a_model_that_is_taken_to_have_a_command_is_found(source: str) -> None:
    assert first_words(source, "xpucached.somewhere") != []
    assert first_words(source.replace("[0]", "[:1]").replace("[-1]", "[:1]"), "xpucached.somewhere") == []


def texts() -> Iterator[Path]:
    """Yield every file of the project that people wrote."""
    # Not by asking git: an unpacked source archive has the same files and no repository.
    # A worktree of git has a file ``.git``, which names where the repository is.
    names = {".coverage", ".git"}
    yield from (path for path in REPOSITORY.iterdir() if path.is_file() and path.name not in names)
    for folder in (".ci", "bench", "demo", "docs", "migrations", "systemd", "tests", "tools", "xpucached"):
        for path in sorted((REPOSITORY / folder).rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                yield path


def test_no_file_names_the_place_where_it_was_written() -> None:
    found = [
        f"{path.relative_to(REPOSITORY)}: {word}"
        for path in texts()
        for word in FORBIDDEN_WORDS
        if word in path.read_text(encoding="utf-8", errors="replace")
    ]

    assert found == []


# -- what may only shrink ---------------------------------------------------------------------------------------------

LONGEST: Final = 400
"""Lines of a file."""

LONGER: Final[dict[str, int]] = {}
"""Files that are longer still: none is added, and none grows."""

KIND_WORDS: Final = re.compile(
    r"\.src\b|\.bin\b|libsycl|sycl\.conf|SYCL_|NEO_|_ZTS|(?-i:(?<![\w/])neo(?!\w))", re.IGNORECASE
)
"""What only a cache kind's own package should say, and the programs that run beside a runtime.

In capitals NEO is a driver.
"""


def sources() -> Iterator[tuple[str, str]]:
    """Yield every file of the package, by its path in it."""
    for path in sorted(PACKAGE.rglob("*.py")):
        yield str(path.relative_to(PACKAGE)), path.read_text(encoding="utf-8")


def grown(now: dict[str, int], known: dict[str, int], limit: int) -> list[str]:
    """Name what is above its bound, and what a bound is written down for that needs none."""
    found = [f"{name}: {n}, at most {known.get(name, limit)}" for name, n in now.items() if n > known.get(name, limit)]
    return found + [f"{name}: needs no bound of its own now" for name in known if now.get(name, 0) <= limit]


def test_no_file_becomes_too_long() -> None:
    assert grown({name: text.count("\n") for name, text in sources()}, LONGER, LONGEST) == []


def test_no_room_but_the_kinds_says_words_of_a_kind() -> None:
    found = [
        f"{name}: {line.strip()}"
        for name, text in sources()
        if not name.startswith(("kinds/", "libexec/"))
        for line in text.splitlines()
        if KIND_WORDS.search(line)
    ]

    assert found == []


def test_what_grows_is_named() -> None:
    assert grown({"a": 3, "b": 1}, {"a": 3}, 1) == []
    assert grown({"a": 2, "b": 1}, {"a": 3}, 1) == []
    assert grown({"a": 4, "b": 2}, {"a": 3}, 1) == ["a: 4, at most 3", "b: 2, at most 1"]
    assert grown({"a": 1}, {"a": 3, "c": 2}, 1) == [
        "a: needs no bound of its own now",
        "c: needs no bound of its own now",
    ]


def beside(source: str) -> list[str]:
    """Name what a room's own file holds besides its docstring, what it imports, and one public class."""
    found = []
    classes = 0
    for node in parsed(source).body:
        match node:
            case ast.Import(names=names) | ast.ImportFrom(names=names):
                found += [f"{one.name} again" for one in names if one.asname == one.name]
            case ast.Expr(value=ast.Constant()) | ast.If(test=ast.Name(id="TYPE_CHECKING")):
                pass
            case ast.ClassDef(name=name) if not name.startswith("_") and not classes:
                classes += 1
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name):
                found.append(name)
            case _:
                found.append(ast.unparse(node).partition("=")[0].partition(":")[0].strip())
    return found


CROWDED: Final = {
    "catalog",
    "cli",
    "kinds/sycl",
}
"""Rooms whose own file holds more still: none is added."""


def test_a_room_s_own_file_holds_one_class_at_most() -> None:
    full = {
        name.removesuffix("/__init__.py") for name, text in sources() if name.endswith("/__init__.py") and beside(text)
    }

    assert full == CROWDED


@pytest.mark.parametrize(
    ("source", "named"),
    [
        ('"""Room."""\nfrom a import b\nclass Room: ...', []),
        ("if TYPE_CHECKING:\n    from a import b", []),
        ("from a import b as b", ["b again"]),
        ("class A: ...\nclass B: ...", ["B"]),
        ("class _A: ...", ["_A"]),
        ("def f(): ...\nX: int = 1", ["f", "X"]),
    ],
)
def test_what_a_room_s_own_file_holds_besides_is_named(source: str, named: list[str]) -> None:
    assert beside(source) == named


def twice(texts: Iterator[tuple[str, str]]) -> list[str]:
    """Name the classes that stand in two files."""
    where: dict[str, list[str]] = {}
    for name, text in texts:
        for node in ast.walk(parsed(text)):
            if isinstance(node, ast.ClassDef):
                where.setdefault(node.name, []).append(name)
    return [f"{name}: {', '.join(files)}" for name, files in sorted(where.items()) if len(files) > 1]


def test_a_class_name_stands_for_one_class() -> None:
    assert twice(sources()) == []


def test_a_class_name_that_stands_twice_is_found() -> None:
    assert twice(iter([("a.py", "class A: ..."), ("b.py", "class A: ...\nclass B: ...")])) == ["A: a.py, b.py"]


def test_no_value_has_a_default_of_the_other_library() -> None:
    """`dataclasses.field` in a `msgspec.Struct` is the default itself, and not what it makes."""
    wrong = []
    for path in sorted(PACKAGE.rglob("*.py")):
        tree = parsed(path.read_text())
        imported = [one for one in ast.walk(tree) if isinstance(one, ast.ImportFrom) and one.module == "dataclasses"]
        if not any(name.name == "field" for one in imported for name in one.names):
            continue
        for kind in ast.walk(tree):
            if isinstance(kind, ast.ClassDef) and not any(
                "dataclass" in ast.unparse(one) for one in kind.decorator_list
            ):
                wrong += [
                    f"{path.relative_to(PACKAGE)}:{one.lineno}"
                    for one in kind.body
                    if isinstance(one, ast.AnnAssign) and one.value and ast.unparse(one.value).startswith("field(")
                ]
    assert wrong == []


def test_each_migration_has_a_number_of_its_own_and_follows_the_one_before() -> None:
    """Of two with one number a catalog meets one only, and lacks what the other makes."""
    before = "None"
    for path in sorted((REPOSITORY / "migrations" / "versions").glob("[0-9]*.py")):
        text = path.read_text(encoding="utf-8")
        number = path.name[:4]
        assert f'\nrevision = "{number}"\n' in text, path
        assert f"\ndown_revision = {before}\n" in text, path
        before = f'"{number}"'
    assert before == f'"{tables.REVISION}"'


def test_no_test_forks_itself() -> None:
    """A copy that fails must not go on as if it ran the tests: `tests.support.forks.copy` sees to it."""
    texts = {path: path.read_text("utf-8") for path in (REPOSITORY / "tests").rglob("test_*.py")}
    found = {
        path.relative_to(REPOSITORY).as_posix()
        for path, text in texts.items()
        if "os.fork" in text  # to parse all takes seconds
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "os.fork"
    }
    assert found == set()


def test_nothing_waits_by_what_ends_at_1024_descriptors() -> None:
    """``select.select`` refuses descriptors of higher numbers; `processes.polling` takes any."""
    found = {
        module
        for module, path in modules()
        if "select" in (text := path.read_text("utf-8"))
        for node in ast.walk(ast.parse(text))
        if (isinstance(node, ast.Attribute) and ast.unparse(node) == "select.select")
        or (isinstance(node, ast.ImportFrom) and node.module == "select")
        or (isinstance(node, ast.Attribute) and node.attr == "SelectSelector")
    }
    assert found == set()


RESOLVERS: Final = {"mounts.py", "cli/belonging.py"}
"""Who may ask where links lead, besides programs that run alone; to the second what cannot be told is not ours."""


def test_nobody_asks_where_links_lead_in_a_way_that_some_links_make_fail() -> None:
    """``os.path.realpath`` and ``Path.resolve`` raise where a link cannot be read; `mounts.real` does not."""
    found = {
        f"{name}: {ast.unparse(node)}"
        for name, text in sources()
        if name not in RESOLVERS and not name.startswith("libexec/") and ("realpath" in text or "resolve" in text)
        for node in ast.walk(parsed(text))
        if (isinstance(node, ast.Attribute) and node.attr in {"realpath", "resolve"})
        or (isinstance(node, ast.ImportFrom) and any(one.name == "realpath" for one in node.names))
        if ast.unparse(node) != "Path(__file__).resolve"
    }
    assert found == set()


def test_nothing_is_asked_that_an_older_sqlite_does_not_know() -> None:
    """RHEL 9 has 3.34, without ``RETURNING``: a statement that it does not know looks like a damaged catalog."""
    assert {name for name, text in sources() if re.search(r"\.returning\(|\bRETURNING\b", text)} == set()


def test_values_are_read_field_by_field_behind_one_lock() -> None:
    """Where two threads meet types that share one for the first time at once, ``msgspec.convert`` ends the process."""
    found = {
        name
        for name, text in sources()
        if name != "codec.py" and re.search(r"msgspec\.convert\b|from msgspec import [^\n]*\bconvert\b", text)
    }
    assert found == set()


BY_THEIR_PATHS: Final = frozenset(
    {"bundle/writing.py", "host/process_times.py", "kinds/fs.py", "processes/live_threads.py"}
)
"""Who opens what no link of somebody's leads to: what is its own, what the kernel makes up, and what it looked at."""


def test_nobody_opens_what_a_link_may_have_lead_to_our_own_database() -> None:
    """To close it would let go of the locks that this process has on it; `reading.opened` does not open it."""
    found = {
        f"{name}: {ast.unparse(node)}"
        for name, text in sources()
        if name not in BY_THEIR_PATHS and name != "reading.py" and not name.startswith(("libexec/", "cli/", "watchd/"))
        for node in ast.walk(parsed(text))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "os.open" and "O_RDONLY" in ast.unparse(node)
        if not re.search("O_NOFOLLOW|_DIRECTORY|O_PATH", ast.unparse(node))
    }
    assert found == set()
