"""A program that listens where a daemon would, and answers what it likes."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

_LIAR: Final = r"""
import json, os, socket, sys
path, uid, answers = sys.argv[1], int(sys.argv[2]), json.loads(sys.argv[3])
one = socket.socket(socket.AF_UNIX)
one.bind(path)
os.chmod(path, 0o666)
# Who listens is what the kernel tells about: so the one who binds may be another.
if uid != os.geteuid():
    os.setgroups([]); os.setgid(uid); os.setuid(uid)
one.listen()
print("ready", flush=True)
while True:
    peer, _ = one.accept()
    with peer:
        print("asked", flush=True)
        peer.settimeout(10)
        try:
            head = b""
            while b"\r\n\r\n" not in head:
                part = peer.recv(65536)
                if not part:
                    break
                head += part
            words = head.split()
            target = words[1].decode().split("?")[0] if len(words) > 1 else ""
            text = b"text/plain" in head and answers.get("text") is not None
            kind = "text/plain" if text else "application/json"
            said = answers["text"] if text else json.dumps(answers.get(target, {"api": 1, "data": None}))
            said = answers.get("raw", said)
            body = said.encode("utf-8", "surrogatepass")
            peer.sendall(
                f"HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n"
                "Connection: close\r\n\r\n".encode() + body
            )
        except OSError:
            pass
"""


@dataclass(slots=True)
class Liar:
    """Something that listens where a daemon would, and answers what it likes."""

    process: subprocess.Popen[str]
    heard: list[str] = field(default_factory=list)

    def asked(self) -> int:
        """End it, and tell how often somebody connected."""
        self.process.kill()
        assert self.process.stdout is not None
        self.heard += self.process.stdout.read().split()
        return self.heard.count("asked")


@contextlib.contextmanager
def liar(
    path: Path, answers: Mapping[str, object], *, uid: int | None = None, bound_by: int | None = None
) -> Iterator[Liar]:
    """Listen at a path as a user; another may have made the socket."""
    uid = os.geteuid() if uid is None else uid
    maker = uid if bound_by is None else bound_by
    words: Sequence[str] = [sys.executable, "-I", "-S", "-c", _LIAR, str(path), str(uid), json.dumps(answers)]
    if maker != os.geteuid():
        done = shutil.which(f"python3.{sys.version_info.minor}", path="/usr/local/bin:/usr/bin")
        words = [done or sys.executable, *words[1:]]
    process = subprocess.Popen(
        words,
        stdout=subprocess.PIPE,
        text=True,
        user=maker if maker != os.geteuid() else None,
        group=maker if maker != os.geteuid() else None,
        extra_groups=[] if maker != os.geteuid() else None,
        cwd="/",
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield Liar(process)
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()
