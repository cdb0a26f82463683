"""What the kernel says of a process in one line, whatever it is called."""

from __future__ import annotations

import os

import pytest

from xpucached.host import process_times

TICKS = os.sysconf("SC_CLK_TCK")


def line(name: str, state: str = "S", flags: int = 0x400000) -> bytes:
    return f"7 ({name}) {state} 3 7 7 0 -1 {flags} 1 2 3 4 5 6 7 8 20 0 1 0 {90 * TICKS} 1 2 3\n".encode()


@pytest.mark.parametrize("name", ["python3", "a b", ") Z 1 (", "(x) R 9"])
def test_a_process_is_what_it_is_whatever_it_is_called(name: str) -> None:
    assert process_times.facts(line(name)) == process_times.ProcessFacts(
        ended=False, leader_ended=False, parent=3, of_kernel=False, began=90.0, touched=(b"1", b"3", b"1")
    )


def test_what_has_ended_and_what_is_the_kernel_s_is_known() -> None:
    assert process_times.facts(line("x", "Z")).ended
    assert process_times.facts(line("kworker/0:1", "I", 0x4208060)).of_kernel
    assert not process_times.facts(line("x", "T")).ended


@pytest.mark.parametrize("some", [b"", b"7 (x) S", b"7 (x) S a 7 7 0 -1 4 1 2 3 4 5 6 7 8 20 0 1 0 9"])
def test_half_a_line_is_no_answer(some: bytes) -> None:
    with pytest.raises((ValueError, IndexError)):
        process_times.facts(some)


def test_we_are_ours() -> None:
    assert process_times.uid(os.getpid()) == os.getuid()
    assert os.getpid() in process_times.pids()
    with pytest.raises(OSError, match="No such file"):
        process_times.uid(2**22 + 1)
