"""Somebody makes a daemon log without end, or lines that are not its own: they are few, short, and one line each."""

from __future__ import annotations

import io
import logging
import time
from typing import TYPE_CHECKING

import pytest

from xpucached import logs

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.users import User

TRIES = 400
KNOCK = f"""
import socket, sys
request = b"POST /v1/scan HTTP/1.1\\r\\nHost: localhost\\r\\nContent-Length: 2\\r\\n\\r\\n{{}}"
for _ in range({TRIES} // 40):
    with socket.socket(socket.AF_UNIX) as one:
        one.connect(sys.argv[1])
        for _ in range(40):
            one.sendall(request)
            head = b""
            while b"denied" not in head:
                head += one.recv(65536)
print("knocked")
"""


def test_another_user_s_requests_fill_no_journal(attacker: User, victim: User, common: Path) -> None:
    place = common / "open"
    place.mkdir()
    victim.owns(place)
    env = {"XPUCACHED_SOCKET": str(place / "s"), "XPUCACHED_PATHS_SOCKET_MODE": "0666"}
    daemon = victim.start(victim.program, "-m", "xpucached", "--user", env=env)
    try:
        end = time.monotonic() + 90
        while not (place / "s").exists():
            assert time.monotonic() < end
            assert daemon.poll() is None
            time.sleep(0.05)
        assert attacker.python(KNOCK, place / "s").stdout == "knocked\n"
    finally:
        daemon.terminate()
        _, said = daemon.communicate(timeout=60)

    refused = [line for line in said.splitlines() if "refused: POST /v1/scan" in line]
    assert 1 <= len(refused) <= TRIES // 4
    assert f"uid {attacker.uid}" in refused[0]


class Clock:
    """A clock that is set by hand."""

    now = 0.0

    def __call__(self) -> float:
        """Return the time."""
        return self.now


@pytest.fixture
def written() -> tuple[logging.Logger, io.StringIO, Clock]:
    """Return a logger that writes as the daemon's do."""
    clock, out = Clock(), io.StringIO()
    handler = logging.StreamHandler(out)
    handler.setFormatter(logs.Formatter("%(levelname)s: %(message)s", journal=True))
    handler.addFilter(logs.Bounded(logs.Allowance(3, 10.0, clock)))
    logger = logging.Logger("test", logging.INFO)  # noqa: LOG001 - one that nobody else knows
    logger.addHandler(handler)
    return logger, out, clock


def test_lines_of_one_kind_are_counted_and_others_go_on(
    written: tuple[logging.Logger, io.StringIO, Clock],
) -> None:
    logger, out, _ = written
    for number in range(100):
        logger.info("refused: %d", number)
    logger.warning("a worker does not answer")

    # What is logged at another place of the program is another kind.
    assert out.getvalue().splitlines() == [
        *(f"<6>INFO: refused: {number}" for number in range(3)),
        "<4>WARNING: a worker does not answer",
    ]


def test_what_was_left_out_is_told_with_the_next_line(
    written: tuple[logging.Logger, io.StringIO, Clock],
) -> None:
    logger, out, clock = written
    for number in range(101):
        clock.now = 1000.0 if number == 100 else 0.0
        logger.info("refused: %d", number)

    assert out.getvalue().splitlines()[-1] == "<6>INFO: refused: 100 (97 lines like this were left out before)"


def test_a_line_is_one_short_line_of_safe_text(written: tuple[logging.Logger, io.StringIO, Clock]) -> None:
    logger, out, _ = written
    logger.info("from a worker: %s", "a\n<0>forged: b\x1b[2J\u202ec\udc80\x9b" + "x" * 100_000)
    logger.error("failed", exc_info=ValueError("a\n<0>forged\x1b[2J" + "y" * 100_000))
    text = out.getvalue()

    assert len(text) < 3 * logs.LONGEST + 10 * logs.LONGEST
    first, *others = text.split("\n")
    assert first.startswith("<6>INFO: from a worker: a <0>forged: b\\x1b[2J\\u202ec\\udc80\\x9bxxx")
    assert others[0] == "<3>ERROR: failed"
    assert all(line.startswith("<3>  ") or not line for line in others[1:])
    assert "\x1b" not in text
