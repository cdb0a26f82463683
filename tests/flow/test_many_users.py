"""The host's answer to `status`: for twenty users it takes less than twice what it takes for one."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING, Final

import pytest
from msgspec.structs import replace

from tests.support import histories, host_stub

if TYPE_CHECKING:
    from pathlib import Path

COUNTED: Final = """
import sys
calls = 0
def count(frame, event, value):
    global calls
    calls += event in ("call", "c_call")
sys.setprofile(count)
from xpucached import sockets
sockets.ADMIN = sockets.PUBLIC = sys.argv[1]
from xpucached.cli import program
status = program.main(sys.argv[2:])
sys.setprofile(None)
print(calls, file=sys.stderr)
sys.exit(status)
"""
"""The client from its first line on, with its calls counted: what it does is the same on a busy machine."""


def asked(path: Path, *words: str) -> tuple[str, int]:
    """Return what a client prints, and how many calls it made."""
    done = subprocess.run(
        [sys.executable, "-c", COUNTED, path, "--system", *words],
        env={**os.environ, "COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout, int(done.stderr.splitlines()[-1])


@pytest.mark.flow
@pytest.mark.parametrize("words", [("status",), ("status", "--json")], ids=" ".join)
def test_of_twenty_users_it_takes_less_than_twice_what_it_takes_of_one(short_dir: Path, words: tuple[str, ...]) -> None:
    sample = histories.make_host_status()
    took: list[int] = []
    path = short_dir / "host.sock"
    with host_stub.running(path) as host:
        for many in (1, 20, 200):
            people = tuple(replace(sample.users[0], user=f"u{number:03}", uid=2000 + number) for number in range(many))
            host.value = replace(sample, users=people)
            said, calls = asked(path, *words)
            took.append(calls)
            assert f"u{many - 1:03}" in said
    one, twenty, two_hundred = took
    assert one < twenty < 2 * one
    # And each one more costs the same.
    assert two_hundred - twenty <= 1.2 * (twenty - one) * 180 / 19 + 0.01 * one
