"""What is asked of entries of any kind goes to their kind, and of one that is not there anything is asked in vain."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest

from tests.support.builders import sycl_target
from xpucached.domain.names import EntryKey, KindName
from xpucached.domain.stores import EntryId, Store
from xpucached.kinds import model_caches, sycl, table

if TYPE_CHECKING:
    from xpucached.kinds.interface import Kind

THERE = EntryId(Store(KindName("there"), Path("/c")), EntryKey("1/2/3/4/0"))
GONE = EntryId(Store(KindName("gone"), Path("/c")), EntryKey("1/2/3/4/0"))


@pytest.mark.parametrize(
    ("told", "expected"), [(("source", "options"), ("there source", "there options")), (None, None)]
)
def test_what_an_entry_was_built_from_is_told_with_its_kind(
    monkeypatch: pytest.MonkeyPatch, told: tuple[str, str] | None, expected: tuple[str, str] | None
) -> None:
    kind = SimpleNamespace(scanner=SimpleNamespace(built_from=lambda _: told))
    monkeypatch.setitem(table.KINDS, THERE.store.kind, cast("Kind", kind))
    assert table.built_from(THERE) == expected
    assert table.built_from(GONE) is None


def test_what_a_dead_daemon_began_is_finished_by_its_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    swept: list[EntryId] = []
    kind = SimpleNamespace(remover=SimpleNamespace(sweep=swept.append))
    monkeypatch.setitem(table.KINDS, THERE.store.kind, cast("Kind", kind))
    table.sweep([GONE, THERE])
    assert swept == [THERE]


def test_directories_of_models_have_a_trash_of_their_own() -> None:
    assert table.trash_of(model_caches.KIND) is model_caches.TRASH
    assert table.trash_of(sycl.NAME) is sycl.KIND.trash


@pytest.mark.parametrize(
    ("key", "leaf"),
    [
        ("1/2/3/4/0", "2/3/4"),
        ("1/0", None),
        ("ext_kernel_compiler/1/2/3/0", None),
        ("ext_kernel_compiler/k/ir", None),
    ],
)
def test_what_stays_of_a_key_of_sycl_is_its_leaf_below_the_device(key: str, leaf: str | None) -> None:
    assert sycl.rebuilder.lineage_key(EntryKey(key)) == leaf


@pytest.mark.parametrize(
    ("platform", "backend"),
    [
        ("Intel(R) oneAPI Unified Runtime over Level-Zero", "level-zero"),
        ("Intel(R) OpenCL Graphics", "opencl"),
        ("Intel(R) OpenCL", "opencl"),
    ],
)
def test_what_compiles_for_a_device_of_sycl_is_asked_through_its_backend(platform: str, backend: str) -> None:
    spec = sycl.rebuilder.compiler(sycl_target(platform, "GPU", "3.0", "1.2"), Path("/c"))
    wanted = f'["{platform}", "GPU", "3.0", "1.2"]'
    assert spec.arguments == ("--backend", backend, "--environment", wanted)
