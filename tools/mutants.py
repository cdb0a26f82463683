"""Put sampled faults into the code, one at a time, and see whether the unit tests of its room find them.

    python tools/mutants.py                     # 20 faults in each room
    python tools/mutants.py planning --count 60 --seed 7

A fault is a comparison that is turned, ``and`` for ``or``, a ``not`` that is lost, a constant that is moved, or a call
whose result nobody takes that is left out.  A fault survives if all tests pass; the same seed gives the same faults.
Exit status 1 if fewer are found than ``--least`` says.

Why not mutmut or cosmic-ray: neither takes a seeded sample (a room has thousands of faults), and mutmut 3 chooses the
tests itself after it has run all of them.  Here each fault costs a fork, the loading of the project and, until the
first failure, those of the room's tests that call the function; no file is changed, the faulty module exists only in
the memory of that process.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import importlib.machinery
import importlib.util
import json
import os
import random
import select
import signal
import sys
import tempfile
import threading
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from types import CodeType, FrameType

    import pytest

REPOSITORY: Final = Path(__file__).resolve().parent.parent
PACKAGE: Final = "xpucached"

ROOMS: Final = {
    "planning": ("tests/unit/planning/test_*.py", "tests/flow/test_throttling.py", "tests/flow/test_uncached.py"),
    "kinds": ("tests/kinds/test_*.py", "tests/attacks/test_forged_images.py"),
    "api": ("tests/unit/api/test_*.py", "tests/unit/test_messages.py"),
    "server": ("tests/unit/server/test_*.py",),
    "catalog": ("tests/unit/catalog/test_*.py", "tests/unit/planning/test_preselect.py"),
    "settings": ("tests/unit/settings/test_*.py",),
}
"""Each room, and its unit tests."""

_LOADED: Final = ("alembic.command", "psutil", "sqlalchemy")
"""What every process needs, and no fault is put into; what pytest has plugins of, it loads itself."""

_TURNED: Final[dict[type[ast.cmpop], type[ast.cmpop]]] = {
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}


_STRICT: Final = frozenset({"frozen", "kw_only", "slots"})
"""What a dataclass only forbids with."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault: which of a file's possible ones it is, and what it is in words."""

    file: Path
    number: int
    line: int
    words: str

    @property
    def place(self) -> str:
        """Where, as compilers say it."""
        return f"{self.file.relative_to(REPOSITORY)}:{self.line}"


def faults(file: Path) -> list[Fault]:
    """List what can be put into a file."""
    tree = ast.parse(file.read_bytes())
    return [
        Fault(file, number, node.lineno, ast.unparse(node).partition("\n")[0][:70])
        for number, node in enumerate(_places(tree))
    ]


def _places(tree: ast.Module) -> Iterator[ast.Expr | ast.Compare | ast.BoolOp | ast.UnaryOp | ast.Constant]:
    """Yield what can be made wrong, always in the same order."""
    # What types say is read by tools, what is logged by people, and what a class forbids nobody does: no test fails.
    left_out = {id(below) for node in ast.walk(tree) for one in _not_run(node) for below in ast.walk(one)}
    for node in ast.walk(tree):
        if id(node) in left_out:
            continue
        match node:
            case ast.Compare() | ast.BoolOp() | ast.UnaryOp(op=ast.Not()) | ast.Expr(value=ast.Call()):
                yield node
            case ast.Expr(value=ast.Await(value=ast.Call())):
                yield node
            case ast.Constant(value=bool() | int() | float()):
                yield node


def _not_run(node: ast.AST) -> Iterator[ast.AST]:
    match node:
        case ast.AnnAssign(annotation=one) | ast.arg(annotation=ast.expr() as one):
            yield one
        case ast.FunctionDef(returns=ast.expr() as one) | ast.AsyncFunctionDef(returns=ast.expr() as one):
            yield one
        case ast.ClassDef():
            for made in node.decorator_list:
                if isinstance(made, ast.Call) and ast.unparse(made.func) == "dataclass":
                    yield from (flag.value for flag in made.keywords if flag.arg in _STRICT)
        case ast.If(test=ast.Name(id="TYPE_CHECKING")):
            yield node
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name(id="log")))):
            yield node
        case _:
            pass


def code(fault: Fault) -> CodeType:
    """Compile the file with the fault in it."""
    tree = ast.parse(fault.file.read_bytes())
    match list(_places(tree))[fault.number]:
        case ast.Compare(ops=operators):
            operators[0] = _TURNED[type(operators[0])]()
        case ast.BoolOp(op=operator) as node:
            node.op = ast.And() if isinstance(operator, ast.Or) else ast.Or()
        case ast.UnaryOp(operand=operand) as node:
            node.operand = ast.copy_location(ast.UnaryOp(ast.Not(), operand), operand)
        case ast.Constant(value=bool() as value) as node:
            node.value = not value
        case ast.Constant(value=int() | float() as value) as node:
            node.value = value * 2 + 1
        case ast.Expr() as node:
            node.value = ast.copy_location(ast.Constant(None), node)
        case other:
            raise AssertionError(other)
    return compile(ast.fix_missing_locations(tree), fault.file, "exec")


class _Faulty(importlib.machinery.SourceFileLoader):
    """Finds the one module with the fault, and loads it."""

    def __init__(self, fault: Fault) -> None:
        parts = fault.file.relative_to(REPOSITORY).with_suffix("").parts
        self._package = parts[-1] == "__init__"
        super().__init__(".".join(parts[:-1] if self._package else parts), str(fault.file))
        self._code = code(fault)

    def find_spec(self, name: str, *_: object) -> importlib.machinery.ModuleSpec | None:
        """Find it, as Python asks whoever stands in `sys.meta_path`."""
        below = [str(Path(self.path).parent)] if self._package else None
        spec = importlib.util.spec_from_file_location(name, self.path, loader=self, submodule_search_locations=below)
        return spec if name == self.name else None

    def get_code(self, _name: str) -> CodeType:
        """Return the code with the fault."""
        return self._code


class _Search:
    """A plugin of pytest that ends hypothesis's search at the first example that fails."""

    def pytest_configure(self) -> None:
        """Make no example smaller, which takes minutes and nobody reads; and find the same ones in each process."""
        hypothesis = importlib.import_module("hypothesis")
        phases = [hypothesis.Phase.explicit, hypothesis.Phase.generate]
        hypothesis.settings.register_profile("mutants", phases=phases, derandomize=True, deadline=None, database=None)
        hypothesis.settings.load_profile("mutants")


class _Callers:
    """A plugin of pytest that notes which tests call which functions of a room."""

    def __init__(self, room: Path, told: Path) -> None:
        self._room = f"{room}{os.sep}"
        self._told = told
        self._called: set[str] = set()
        self._loading: frozenset[str] = frozenset()
        self._tests: dict[str, list[str]] = {}
        self._seconds: dict[str, float] = {}

    def pytest_load_initial_conftests(self) -> None:
        """Begin with the loading of modules."""
        sys.settrace(self._note)

    def pytest_collection_finish(self) -> None:
        """End with that: what is called then only makes what any test may use."""
        self._loading = frozenset(self._called)

    def pytest_runtest_setup(self) -> None:
        """Begin with a test, and with its fixtures."""
        self._called.clear()
        threading.settrace(self._note)
        sys.settrace(self._note)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """End with a test."""
        self._seconds[report.nodeid] = self._seconds.get(report.nodeid, 0.0) + report.duration
        if report.when == "teardown":
            for function in self._called:
                self._tests.setdefault(function, []).append(report.nodeid)
            self._called.clear()

    def pytest_unconfigure(self) -> None:
        """Tell all of it."""
        sys.settrace(None)
        for function in self._loading:
            self._tests.setdefault(function, list(self._seconds))
        self._told.write_text(json.dumps([self._tests, self._seconds]), encoding="utf-8")

    def _note(self, frame: FrameType, _event: str, _arg: object) -> None:
        code = frame.f_code
        if code.co_filename.startswith(self._room):
            self._called.add(f"{code.co_filename}:{code.co_firstlineno}")


def callers(room: Path, tests: Sequence[Path]) -> tuple[dict[str, list[str]], dict[str, float]]:
    """Run the tests as they are; give for each function that was called the tests that called it, and their seconds.

    A function is named by its file and the line where it begins.
    """
    with tempfile.NamedTemporaryFile(prefix="xpucached-mutants-", suffix=".json") as told:
        if not survives(None, tests, 1800, _Callers(room, Path(told.name))):
            raise SystemExit(f"{room.name}: its tests fail as it is: {' '.join(map(str, tests))}")
        called, seconds = json.loads(Path(told.name).read_text("utf-8"))
        return called, seconds


def function_of(fault: Fault) -> str | None:
    """Name the function in which a fault is, as `callers` does; None if in none, or in one that is called once."""
    around = [
        (min(one.lineno for one in (node, *node.decorator_list)), "cache" in map(ast.unparse, node.decorator_list))
        for node in ast.walk(ast.parse(fault.file.read_bytes()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.lineno < fault.line <= (node.end_lineno or node.lineno)
    ]
    line, cached = max(around, default=(0, True))
    # Only the first test that needs its answer calls it.
    return None if cached else f"{fault.file}:{line}"


def survives(fault: Fault | None, tests: Sequence[object], patience: float, plugin: object = None) -> bool:
    """Run the tests with the fault, or as it is; tell whether all passed.  What takes too long was found."""
    with tempfile.TemporaryDirectory(prefix="xpucached-mutants-") as place:
        child = os.fork()
        if not child:
            os.setsid()
            _be(fault, tests, Path(place), plugin)
        ended = os.pidfd_open(child)
        in_time = bool(select.select([ended], [], [], patience)[0])
        os.close(ended)
        # Whatever it started goes with it.
        os.killpg(child, signal.SIGKILL)
        passed = os.waitpid(child, 0)[1] == 0 and in_time
        if fault is None and not passed:
            sys.stderr.write((Path(place) / "log").read_text("utf-8", "replace")[-3000:])
        return passed


def _be(fault: Fault | None, tests: Sequence[object], place: Path, plugin: object) -> None:
    """Be the process that has the fault; never comes back."""
    status = 1
    try:
        silent = os.open(place / "log", os.O_WRONLY | os.O_CREAT, 0o600)
        os.dup2(silent, 1)
        os.dup2(silent, 2)
        if fault is not None:
            sys.meta_path.insert(0, _Faulty(fault))
        options = ["-qx", "-p", "no:cacheprovider", "-p", "no:randomly", "-m", "not runtime and not torch"]
        pytest = importlib.import_module("pytest")
        plugins = [_Search(), *([] if plugin is None else [plugin])]
        status = int(pytest.main([*options, f"--basetemp={place / 'made'}", *map(str, tests)], plugins))
    except BaseException:  # noqa: BLE001 - told, and then it ends
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


def examine(room: str, count: int, seed: int) -> tuple[int, int]:
    """Try faults in one room, and say what became of each; give how many were found, and of how many."""
    tests = sorted({path for pattern in ROOMS[room] for path in REPOSITORY.glob(pattern)})
    every = [one for file in sorted((REPOSITORY / PACKAGE / room).rglob("*.py")) for one in faults(file)]
    sample = random.Random(f"{seed} {room}").sample(every, min(count, len(every)))  # noqa: S311 - the same each time
    known, seconds = callers(REPOSITORY / PACKAGE / room, tests)
    found = 0
    for fault in sorted(sample, key=lambda one: (one.file, one.line)):
        function = function_of(fault)
        # The quick ones first: the first failure ends it.
        chosen = sorted(seconds if function is None else known.get(function, []), key=lambda one: seconds[one])
        lives = not chosen or survives(fault, chosen, 20 + 3 * sum(seconds[one] for one in chosen))
        found += not lives
        print(f"{'SURVIVED' if lives else 'found   '}  {fault.place}: {fault.words}", flush=True)
    print(f"{room}: {found} of {len(sample)} found, of {len(every)} that there could be", flush=True)
    return found, len(sample)


def main() -> int:
    """Try all rooms that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("rooms", nargs="*", metavar="ROOM", help=f"default: all of {', '.join(ROOMS)}")
    parser.add_argument("--count", type=int, default=20, help="so many faults in each room")
    parser.add_argument("--seed", type=int, default=1, help="the same number gives the same faults")
    parser.add_argument("--least", type=int, default=0, metavar="PERCENT", help="fail if fewer are found")
    given = parser.parse_args()
    if unknown := set(given.rooms) - set(ROOMS):
        parser.error(f"no such room: {', '.join(sorted(unknown))}")
    os.chdir(REPOSITORY)
    for module in _LOADED:
        importlib.import_module(module)
    results = [examine(room, given.count, given.seed) for room in given.rooms or ROOMS]
    found, tried = (sum(one) for one in zip(*results, strict=True))
    print(f"all: {found} of {tried} found")
    return int(found * 100 < given.least * tried)


if __name__ == "__main__":
    sys.exit(main())
