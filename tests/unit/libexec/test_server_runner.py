"""Who listens where a model's server should: read from the kernel's table of sockets."""

from __future__ import annotations

import os
import signal
import socket

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
        assert server_runner.strangers([(host, port)]) == []
        os.write(going, b"1")
        assert os.read(reading, 7) == b"listens"
        assert server_runner.strangers([(host, port)]) == [NOBODY]
        assert server_runner.strangers([(host, port + 1)]) == []
        assert server_runner.strangers([("127.0.0.2", port)]) == ([NOBODY] if not bound else [])
    finally:
        forks.kill(child)
        for one in (reading, writing, waiting, going):
            os.close(one)
