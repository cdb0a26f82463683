"""Which recipes reach a compiler, and what is told of what it makes."""

from __future__ import annotations

import time
from contextlib import nullcontext
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest

from tests.support.bundles import TARGET
from xpucached.bundling.drivers import UsedDriver
from xpucached.bundling.rebuilding import Recompiler, Wanted
from xpucached.domain.host import Host, OtherDriver
from xpucached.domain.names import EntryKey
from xpucached.domain.plans import Recipe
from xpucached.domain.stores import EntryId, Store
from xpucached.errors import XpucachedError
from xpucached.processes.compiler import CompilerProcess, NoCompiler

if TYPE_CHECKING:
    from typing import NoReturn

    from xpucached.domain.bundles import MadeEntry
    from xpucached.kinds.interface import Rebuilder


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
