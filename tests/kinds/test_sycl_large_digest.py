"""The digest of a program that is too large to be looked into: read in pieces, once for each file."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest

from xpucached.domain.names import EntryKey
from xpucached.domain.stores import KnownEntry, program_digest
from xpucached.kinds.sycl import large
from xpucached.kinds.sycl.entry_format import Frame

if TYPE_CHECKING:
    from pathlib import Path

    from xpucached.kinds.sycl.scan_state import ScanState

KEY = EntryKey("1/2/3/4/0")
CONTENT = bytes(range(100))


def looked(
    path: Path, frame: Frame, known: dict[EntryKey, KnownEntry], digests: dict[tuple[int, ...], str]
) -> str | None:
    look = cast("ScanState", SimpleNamespace(known=known, digests=digests))
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return large.large_digest(look, KEY, descriptor, os.fstat(descriptor), frame)
    finally:
        os.close(descriptor)


def test_a_program_is_read_in_pieces_and_a_file_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "0.bin"
    path.write_bytes(b"x" * 16 + CONTENT + b"more")
    expected = program_digest()
    expected.update(CONTENT)
    monkeypatch.setattr(large, "_STEP", 33)
    again: dict[EntryKey, KnownEntry] = {KEY: KnownEntry(KEY, None)}
    digests: dict[tuple[int, ...], str] = {}
    frame = Frame(16, len(CONTENT))
    assert looked(path, frame, again, digests) == expected.hexdigest()
    assert len(digests) == 1
    digests.update(dict.fromkeys(digests, "as it was"))
    assert looked(path, frame, again, digests) == "as it was"


def test_it_is_read_where_a_whole_look_is_asked_for_and_is_not_forged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "0.bin"
    path.write_bytes(b"x" * 16 + CONTENT)
    again, new = {KEY: KnownEntry(KEY, None)}, {KEY: KnownEntry(KEY, "stamp")}
    assert looked(path, Frame(16, 100), {}, {}) is None
    assert looked(path, Frame(16, 100), new, {}) is None
    assert looked(path, Frame(16, 0), again, {}) is None
    assert looked(path, Frame(16, 101), again, {}) is None, "the file ends before it"
    monkeypatch.setattr(large, "_LARGEST", 100)
    assert looked(path, Frame(16, 100), again, {}) is not None
    monkeypatch.setattr(large, "_LARGEST", 99)
    assert looked(path, Frame(16, 100), again, {}) is None
