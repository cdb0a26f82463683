"""Functions without a framework."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator


def add() -> Callable[[], int]:
    """Return what adds."""
    return lambda: 1 + 1


def words(count: str) -> Callable[[], Iterator[str]]:
    """Yield what tells words, one after the other."""

    def use() -> Iterator[str]:
        for _ in range(int(count)):
            time.sleep(0.01)
            yield "word"

    return use


def silence() -> Callable[[], str]:
    """Return what says nothing."""
    return lambda: ""


def leave() -> Callable[[], object]:
    """Return what leaves the process, as a program does that was never meant to be a library."""
    return lambda: os._exit(0)


def garbage() -> Callable[[], None]:
    """Return what writes nonsense wherever it can."""

    def use() -> None:
        for descriptor in range(256):
            try:
                os.write(descriptor, b'{"token": "?", "report": {}}\n\xff\x00' + os.urandom(10_000))
            except OSError:
                continue

    return use


def lie() -> Callable[[], None]:
    """Return what pretends to report."""

    def use() -> None:
        for descriptor in range(3, 64):
            try:
                os.write(descriptor, b'{"token": "0", "report": {"ran_on": "meant", "device": "xpu:0"}}\n')
            except OSError:
                continue

    return use


def devour() -> Callable[[], object]:
    """Return what takes memory for as long as it gets some."""

    def use() -> object:
        blocks = []
        while True:
            blocks.append(bytearray(os.urandom(1 << 20) * 16))

    return use


def one_large_file() -> Callable[[], None]:
    """Return what fills a file of the temporary directory."""

    def use() -> None:
        with open(os.path.join(os.environ["TMPDIR"], "large"), "wb") as file:
            while True:
                file.write(b"x" * (1 << 20))

    return use


def many_files() -> Callable[[], None]:
    """Return what fills the temporary directory with small files."""

    def use() -> None:
        number = 0
        while True:
            number += 1
            with open(os.path.join(os.environ["TMPDIR"], str(number)), "wb") as file:
                file.write(b"x" * (1 << 18))

    return use


def known(device: str, precision: str, shape: tuple[tuple[int, ...], ...], greeting: str) -> Callable[[], None]:
    """Return what tells what it was given."""
    print(device, precision, shape, greeting)
    return sys.stdout.flush


def nothing() -> None:
    """Give nothing, by mistake."""
