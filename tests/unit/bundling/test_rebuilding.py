"""Which recipes reach a compiler, and what is told of what it makes."""

from __future__ import annotations

import sys
import time
from contextlib import nullcontext
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest

from tests.support.builders import native
from tests.support.bundles import TARGET
from xpucached.bundling.drivers import UsedDriver
from xpucached.bundling.rebuilding import Recompiler, Wanted
from xpucached.domain.host import Host, OtherDriver
from xpucached.domain.names import EntryKey
from xpucached.domain.plans import Recipe
from xpucached.domain.stores import EntryId, Store
from xpucached.errors import HostError, XpucachedError
from xpucached.processes.compiler import CompilerProcess, NoCompiler

if TYPE_CHECKING:
    from typing import NoReturn

    from xpucached.domain.bundles import MadeEntry
    from xpucached.kinds.interface import Rebuilder

MORTAL = """
import json, os, signal, sys
answers = os.fdopen(int(sys.argv[sys.argv.index("--fd") + 1]), "wb", 0)
answers.write(b'{"ready": true}\\n')
for line in sys.stdin.buffer:
    head = json.loads(line)
    options, image = (sys.stdin.buffer.read(head[one]) for one in ("options", "image"))
    if options == b"-D large":
        os.kill(os.getpid(), signal.SIGKILL)
    answers.write(json.dumps({"id": 1, "seconds": 0.1, "binary": len(image)}).encode() + b"\\n" + image)
"""
"""A compiler that gives back what it is given, and that is killed as by a host without memory."""


@pytest.mark.flow
@pytest.mark.parametrize(
    ("begins", "killed", "gives_up"), [("", 9, False), ("", 10, True), ("import os; os.kill(os.getpid(), 9)", 9, True)]
)
def test_some_compilers_that_are_killed_do_not_stop_the_rest(
    tmp_path: Path, begins: str, killed: int, *, gives_up: bool
) -> None:
    tool = tmp_path / "compiler"
    tool.write_text(f"#!{sys.executable}\n{begins}\n{MORTAL}")
    tool.chmod(0o755)
    now = Host(surveyed=datetime.now(UTC), boot="", kernel="", stamp="")
    used = UsedDriver(OtherDriver((TARGET,), "", {}, (str(tool),)), now, {})
    store = Store(TARGET.kind, tmp_path / "store")
    store.root.mkdir()
    facts = {"file-mode": "644", "directory-mode": "755"}
    todo = []
    for number, options in enumerate([b"-D large"] * killed + [b"-D a"] + [b"-D large"] * 9 + [b"-D b"]):
        entry = EntryId(store, EntryKey(f"0/1/2/{number}/0"))
        todo.append(Wanted(Recipe(entry, native(300 + number), options, facts), TARGET))
    compiled = Recompiler(used, {TARGET.kind: store.root}, 60, lambda *_: None, len(todo), threads=1, trusted=True)
    with pytest.raises(HostError, match="one compiler after the other was killed") if gives_up else nullcontext():
        compiled.run(iter(todo))
    assert (len(compiled.made), len(compiled.failures)) == ((0, 10) if gives_up else (2, 18))


@pytest.mark.parametrize(
    ("trusted", "why"),
    [
        (False, "build option -Xfinalizer is taken only from who is trusted, and no trusted key signed it"),
        (True, "it was asked"),
    ],
)
def test_what_nobody_signed_does_not_reach_the_compiler_with_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, trusted: bool, why: str
) -> None:
    def build(*_: object) -> NoReturn:
        raise NoCompiler("it was asked")

    monkeypatch.setattr(CompilerProcess, "build", build)
    now = Host(surveyed=datetime.now(UTC), boot="", kernel="", stamp="")
    used = UsedDriver(OtherDriver((TARGET,), "", {}), now, {})
    store = Store(TARGET.kind, tmp_path)
    recipe = Recipe(EntryId(store, EntryKey("0/1/2/3/0")), b"spirv", b"-g -Xfinalizer x", {})
    compiled = Recompiler(used, {TARGET.kind: tmp_path}, 1, lambda *_: None, 1, trusted=trusted)
    compiled.run(iter([Wanted(recipe, TARGET)]))
    assert [one.why for one in compiled.failures] == [why]


@pytest.mark.parametrize("noted", [True, False])
def test_what_is_made_is_told_of_before_it_is_there(tmp_path: Path, *, noted: bool) -> None:
    did: list[object] = []
    now = Host(surveyed=datetime.now(UTC), boot="", kernel="", stamp="")
    used = UsedDriver(OtherDriver((TARGET,), "", {}), now, {})
    key = EntryKey("0/1/2/3/0")
    recipe = Recipe(EntryId(Store(TARGET.kind, tmp_path), key), b"spirv", b"", {})

    def came(made: MadeEntry, coming: bool) -> None:  # noqa: FBT001 - as who makes them says it
        did.append((made.key, coming))
        if not noted:
            raise XpucachedError("nobody notes it")

    def publish(*_: object) -> EntryKey:
        did.append("there")
        return key

    rebuilder = SimpleNamespace(unusable=lambda *_: None, expected_key=lambda *_: key, publish=publish)
    compiled = Recompiler(used, {TARGET.kind: tmp_path}, 1, lambda *_: None, 1, trusted=True, came=came)
    with pytest.raises(XpucachedError) if not noted else nullcontext():
        compiled._publish(TARGET, (recipe, b"made"), 1.0, tmp_path, cast("Rebuilder", rebuilder))
    assert did == [(key, True), "there", (key, False)][: 3 if noted else 1]


def test_recipes_are_seen_to_by_turns_and_each_sees_to_one(tmp_path: Path) -> None:
    now = Host(surveyed=datetime.now(UTC), boot="", kernel="", stamp="")
    used = UsedDriver(OtherDriver((TARGET,), "", {}), now, {})
    keys = [EntryKey(f"{number}/1/2/3/0") for number in range(5)]
    recipes = [Recipe(EntryId(Store(TARGET.kind, tmp_path), key), b"spirv", b"-Xfinalizer x", {}) for key in keys]
    seen: list[EntryKey] = []
    first: int | None = 0
    while first is not None:
        compiled = Recompiler(
            used, {TARGET.kind: tmp_path}, 1, lambda *_: None, 1, trusted=False, until=time.monotonic()
        )
        compiled.run((Wanted(one, TARGET) for one in recipes), first)
        seen += [one.key for one in compiled.failures]
        assert compiled.next in {first + 1, None}
        first = compiled.next
    assert seen == keys
