"""What attacks on xpucached-watch share: a program that watches as a user, and what runs what watches."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from typing import TYPE_CHECKING, Final

from tests.flow.test_watchd import rights
from xpucached.watchd.server import WatchServer

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.users import User

LEAF: Final = "11/22/33/44"
OWN: Final = "55/7.src"

# Watches a directory, after what a shell does in a namespace of its own; tells what is heard until its own file.
SPY: Final = """
import json, os, socket, subprocess, sys
place, root, own, *words = sys.argv[1:]
watch = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
watch.settimeout(60)
watch.connect(place)
for word in words:
    subprocess.run(word, shell=True, check=True)
directory = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
socket.send_fds(watch, [json.dumps({"watch": 1, "loads": True}).encode()], [directory])
answer = json.loads(watch.recv(1 << 16))
print(json.dumps(answer), flush=True)
sys.stdin.readline()
if "refused" in answer:
    sys.exit()
os.close(os.open(own, os.O_WRONLY | os.O_CREAT, dir_fd=directory))
heard = []
while not any(path == own for _, path, *_ in heard):
    heard += json.loads(watch.recv(1 << 16)).get("events", [])
print(json.dumps(heard))
"""


def store(owner: User, place: Path) -> Path:
    """Make a directory of caches of a user."""
    for leaf in (LEAF, "55"):
        (place / leaf).mkdir(parents=True)
    owner.owns(place)
    return place


def descriptors(most: int = 0) -> int:
    """Return how many descriptors this process has, as soon as these are no more than ``most``, or after a minute.

    What watches runs in this process, and lets go of what a client left a moment after that client has ended.
    """
    until = time.monotonic() + (60 if most else 0)
    while (found := len(os.listdir("/proc/self/fd"))) > most and time.monotonic() < until:
        time.sleep(0.01)
    return found


@contextlib.contextmanager
def running(common: Path) -> Iterator[Path]:
    """Run what watches, as root, where everybody reaches it."""
    rights()
    place = common / "watch"
    watch_server = WatchServer(loads=True)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(place))
        place.chmod(0o666)
        listener.listen(64)
        watch_server.listen(listener)
        with at_work(watch_server):
            yield place


@contextlib.contextmanager
def at_work(watch_server: WatchServer) -> Iterator[None]:
    """Let it run, in a thread."""
    thread = threading.Thread(target=watch_server.run)
    thread.start()
    try:
        yield
    finally:
        watch_server.stop()
        thread.join()
