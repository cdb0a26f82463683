"""Which programs use a directory: whatever it is called, and whatever else they have mapped."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from xpucached import mounts
from xpucached.host import directory_users, process_times

if TYPE_CHECKING:
    from collections.abc import Iterator

_MAPPED: Final = """
import ctypes, mmap, os, sys
# What is mapped first lies above, and is listed last.
with open(sys.argv[1], "rb") as file:
    used = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
if pages := int(sys.argv[3]):
    with open(sys.argv[2], "w+b") as file:
        file.truncate(pages * mmap.PAGESIZE)
        other = mmap.mmap(file.fileno(), 0)
    begin = ctypes.addressof(ctypes.c_char.from_buffer(other))
    for page in range(0, pages, 2):
        # Each with other rights than its neighbours is a mapping of its own.
        ctypes.CDLL(None).mprotect(ctypes.c_void_p(begin + page * mmap.PAGESIZE), ctypes.c_size_t(1), 1)
# A mapping of Python's has its file open, too.
os.closerange(3, 256)
print("mapped", flush=True)
sys.stdin.read()
"""


@pytest.mark.flow
@pytest.mark.parametrize(("name", "pages"), [("plain", 0), ("two\nlines", 0), ("many", 50_000)])
def test_a_directory_of_which_a_program_has_a_file_mapped_is_in_use(tmp_path: Path, name: str, pages: int) -> None:
    place = tmp_path / name
    place.mkdir()
    (place / "kernel.so").write_bytes(bytes(4096))
    other = tmp_path / ("long" * 50)
    words = [sys.executable, "-c", _MAPPED, str(place / "kernel.so"), str(other), str(pages)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd="/") as program:
        try:
            assert program.stdout is not None
            assert program.stdout.readline() == b"mapped\n"
            found = directory_users.users({place})
        finally:
            program.communicate()
    assert f"(process {program.pid})" in found.get(place, "")


@pytest.mark.flow
def test_of_what_programs_have_mounted_elsewhere_no_more_is_kept_than_a_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, elsewhere = tmp_path / "place", tmp_path / "elsewhere"
    place.mkdir()
    elsewhere.mkdir()
    script = 'mount --bind "$1" "$2" && cd "$2" && echo there && exec cat'
    words = ["unshare", "--map-root-user", "--mount", "sh", "-c", script, "sh", str(place), str(elsewhere)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd="/") as program:
        try:
            assert program.stdout is not None
            if program.stdout.readline() != b"there\n":
                pytest.skip("no program may have mounts of its own here")
            assert f"(process {program.pid})" in directory_users.users({place}).get(place, "")
            # Another program with the same mounts may end while we look.
            ended, lines = [Path(f"/proc/{program.pid}/mountinfo")], mounts.lines

            def gone(*of: Path) -> Iterator[tuple[str, mounts.Mount]]:
                if [*of] == ended:
                    ended.clear()
                    raise ProcessLookupError
                return lines(*of)

            with monkeypatch.context() as patch:
                patch.setattr(process_times, "pids", lambda: [program.pid] * 2)
                patch.setattr(mounts, "lines", gone)
                assert place in directory_users.users({place})
            # What does not fit could be what uses it.
            monkeypatch.setattr(directory_users, "_MOST", 10)
            with pytest.raises(OSError, match="too much is mounted"):
                directory_users.users({place})
            monkeypatch.setattr(process_times, "pids", lambda: [os.getppid()])
            assert directory_users.users({place}) == {}
        finally:
            program.communicate()
