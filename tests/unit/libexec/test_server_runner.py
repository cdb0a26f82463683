"""Who listens where a model's server should: read from the kernel's table of sockets."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Literal

import pytest

from tests.support import forks
from xpucached.libexec import server_runner

NOBODY = 65534


@pytest.mark.flow
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can listen as another user")
@pytest.mark.parametrize(
    ("family", "bound", "host"), [(2, "127.0.0.1", "127.0.0.1"), (2, "", "127.0.0.1"), (10, "::1", "::1")]
)
def test_a_program_of_another_user_is_no_server_of_the_model(family: int, bound: str, host: str) -> None:
    """Whoever takes the port in the moment before the server does would get its requests."""
    (reading, writing), (waiting, going) = os.pipe(), os.pipe()

    def listens() -> None:
        os.setuid(NOBODY)
        with socket.socket(socket.AddressFamily(family)) as theirs:
            theirs.bind((bound, 0))
            os.write(writing, f"{theirs.getsockname()[1]} ".encode())
            os.read(waiting, 1)
            theirs.listen()
            os.write(writing, b"listens")
            signal.pause()

    child = forks.copy(listens)
    try:
        port = int(os.read(reading, 6))
        assert server_runner.listeners((host, port)) == set()
        os.write(going, b"1")
        assert os.read(reading, 7) == b"listens"
        assert server_runner.listeners((host, port)) == {NOBODY}
        assert server_runner.listeners((host, port + 1)) == set()
        assert server_runner.listeners(("127.0.0.2", port)) == ({NOBODY} if not bound else set())
        # Nor is it if it has taken the port between two requests.
        url = f"http://{f'[{host}]' if ':' in host else host}:{port}/"
        with pytest.raises(server_runner.Unusable, match=f"a program of user {NOBODY} listens where"):
            server_runner._asked("POST", url, b"secret", {}, 10.0)
    finally:
        forks.kill(child)
        for one in (reading, writing, waiting, going):
            os.close(one)


@pytest.mark.flow
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can listen as another user")
@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_who_has_taken_a_connection_is_known_though_he_listens_no_more(
    monkeypatch: pytest.MonkeyPatch, host: str
) -> None:
    """He leaves the port to the model's server, which alone listens when it is asked who does."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    (reading, writing), listeners = os.pipe(), server_runner.listeners

    def takes() -> None:
        os.setuid(NOBODY)
        with socket.create_server((host, 0), family=family) as theirs:
            os.write(writing, f"{theirs.getsockname()[1]:05}".encode())
            taken, _ = theirs.accept()
        os.write(writing, b"taken")
        while heard := taken.recv(100):
            os.write(writing, heard)

    child = forks.copy(takes)
    try:
        port = int(os.read(reading, 5))
        with contextlib.ExitStack() as ours:

            def after(place: tuple[str, int], *asking: tuple[str, int]) -> set[int]:
                assert os.read(reading, 5) == b"taken"
                ours.enter_context(socket.create_server((host, port), family=family))
                return listeners(place, *asking)

            monkeypatch.setattr(server_runner, "listeners", after)
            url = f"http://{f'[{host}]' if ':' in host else host}:{port}/"
            with pytest.raises(server_runner.Unusable, match=f"a program of user {NOBODY} listens where"):
                server_runner._asked("POST", url, b"secret", {}, 10.0)
    finally:
        forks.kill(child)
        os.close(writing)
        assert os.read(reading, 100) == b""
        os.close(reading)


HEAD = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"


@pytest.mark.parametrize("table", ["away", "folder", "", f"{HEAD}   0: 0100007F\n", HEAD + "0: 0:0 0:0 01\n" * 100_001])
def test_where_the_kernel_does_not_tell_who_listens_it_is_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, table: str
) -> None:
    place = tmp_path / "tcp"
    if table == "folder":
        place.mkdir()
    elif table != "away":
        place.write_text(table)
    monkeypatch.setattr(server_runner, "_TABLES", (str(place), str(place)))
    with pytest.raises(server_runner.Unusable, match=r"it is unknown whose program listens at 127\.0\.0\.1:80"):
        server_runner.listeners(("127.0.0.1", 80))
    # Of a kernel without IPv6 all is known.
    place.rmdir() if table == "folder" else place.unlink(missing_ok=True)
    (tmp_path / "first").write_text(HEAD)
    monkeypatch.setattr(server_runner, "_TABLES", (str(tmp_path / "first"), str(place)))
    assert server_runner.listeners(("127.0.0.1", 80)) == set()


@pytest.mark.flow
@pytest.mark.parametrize("way", ["url", "line"])
def test_nothing_is_sent_where_it_is_unknown_who_listens(tmp_path: Path, way: Literal["url", "line"]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as one:
        port: int = one.getsockname()[1]
    url = f"http://127.0.0.1:{port}/"
    asked = tmp_path / "asked"
    # It notes who connects, whatever is sent.
    program = (
        f"import pathlib, socket; s = socket.create_server(('127.0.0.1', {port})); print('listening', flush=True)\n"
        f"while True:\n  c, _ = s.accept(); pathlib.Path({str(asked)!r}).touch()\n"
        "  c.sendall(b'HTTP/1.1 200 OK\\r\\nContent-Length: 0\\r\\n\\r\\n'); c.close()\n"
    )
    order: server_runner.ServerOrder = {
        "token": "",
        "command": [sys.executable, "-c", program],
        "ready_url": url if way == "url" else "",
        "ready_line": "listening" if way == "line" else "",
        "ready_timeout": 60.0,
        "requests": [{"method": "POST", "url": url, "body": "secret", "headers": {}}],
    }
    runner = (
        "import sys; from xpucached.libexec import server_runner\n"
        f"server_runner._TABLES = ({str(tmp_path / 'away')!r},) * 2; sys.exit(server_runner.main())"
    )
    reading, writing = os.pipe()
    with os.fdopen(reading) as answer:
        with os.fdopen(writing, "w"):
            command = [sys.executable, "-c", runner, "--fd", str(writing)]
            ran = subprocess.run(command, input=json.dumps(order), text=True, pass_fds=(writing,), check=False)
        report = json.loads(answer.read())["report"]
    assert (ran.returncode, report["outcome"]) == (1, "failed")
    assert report["problem"].startswith(f"it is unknown whose program listens at 127.0.0.1:{port}")
    assert not asked.exists()
