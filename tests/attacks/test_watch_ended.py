"""A user tries to end xpucached-watch, or to take what others need of it: by packets, connections and descriptors."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from tests.attacks.watching import OWN, SPY, descriptors, store

if TYPE_CHECKING:
    from tests.support.users import User


SEND: Final = """
import os, socket, sys
for word in sys.argv[2:]:
    one = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    one.settimeout(60)
    one.connect(sys.argv[1])
    here = os.open("/", os.O_RDONLY)
    data = eval(word)
    socket.send_fds(one, [data], [here])
    assert one.recv(100) == b"", word
    os.close(here)
"""

FLOOD: Final = """
import json, os, socket, sys
held = []
mine = os.open(sys.argv[2], os.O_RDONLY | os.O_DIRECTORY)
answers = {"watching": 0, "refused": 0}
for _ in range(60):
    one = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    one.settimeout(60)
    one.connect(sys.argv[1])
    held.append(one)
    try:
        for number in range(60):
            socket.send_fds(one, [json.dumps({"watch": number}).encode()], [mine])
            answers[next(key for key in json.loads(one.recv(1000)) if key in answers)] += 1
    except (ConnectionError, ValueError):
        pass
print(json.dumps(answers), flush=True)
sys.stdin.readline()
"""


def serves(user: User, watch: Path, place: Path) -> bool:
    """Return whether a user is told of what happens in a directory."""
    mine = store(user, place)
    done = user.python(SPY, watch, mine, OWN)
    return f'"{OWN}"' in done.stdout


@pytest.mark.parametrize(
    "word",
    [
        "b'{\"watch\": 1e999}'",
        "b'{\"watch\": 1e99}'",
        "b'{\"watch\": -1}'",
        "b'{\"watch\": true}'",
        'b\'{"watch": 1, "loads": "yes"}\'',
        "b'{\"forget\": 1e999}'",
        'b\'{"forget": \' + b"9" * 3000 + b"}"',
        'b"[" * 30000',
        "b'{\"watch\":' * 10000",
        "b'{\"watch\": NaN}'",
        'b"x" * 60000',
    ],
)
def test_no_packet_ends_it(attacker: User, victim: User, watch: Path, word: str) -> None:
    attacker.python(SEND, watch, word, word)

    assert serves(victim, watch, victim.home / "store")


def test_more_descriptors_than_asked_for_are_closed(attacker: User, victim: User, watch: Path) -> None:
    assert serves(victim, watch, victim.home / "before")
    before = descriptors()
    many = SEND.replace("[here])", "[here] * 200)")
    attacker.python(many, watch, *["b'{\"watch\": 1}'"] * 10)

    assert serves(victim, watch, victim.home / "store")
    assert descriptors(before) <= before


def test_one_user_does_not_take_all_descriptors(attacker: User, victim: User, watch: Path) -> None:
    before = descriptors()
    mine = store(attacker, attacker.home / "mine")
    with attacker.start(*attacker.words(FLOOD, watch, mine)) as flood:
        assert flood.stdout is not None
        answers = flood.stdout.readline()
        held = descriptors() - before
        assert held < 200, answers
        assert serves(victim, watch, victim.home / "store")
        flood.communicate("\n")
