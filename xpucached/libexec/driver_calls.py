"""What the questions to all drivers have in common: bounds, types and the one error."""

from __future__ import annotations

import ctypes
import signal

TYPE_CHECKING = False  # type checkers take it for true; to load `typing` takes a sixth of a probe's time

if TYPE_CHECKING:
    from collections.abc import Sequence

Environments = list[tuple[str, str, str, str]]
Problems = list[tuple[str, str, str]]

MOST = 64  # platforms, drivers or devices: a wild count from a broken driver must not become an allocation
LONGEST = 4096  # bytes of one text

_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG


def end_with_starter() -> None:
    """Have the kernel end this process with the thread that started it: a driver that hangs hears of nothing else."""
    ctypes.CDLL(None).prctl(_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)


class DriverError(Exception):
    """A call into a driver gave an error."""

    def __init__(self, call: str, status: int) -> None:
        super().__init__(f"{call} gave {status}")
        self.status = status


def text(raw: bytes) -> str:
    """Decode what a C program would see; bytes that are no UTF-8 stay visible as escapes, as those in a store do."""
    return raw.split(b"\0", 1)[0].decode("utf-8", "backslashreplace")


def check(call: str, status: int) -> None:
    """Raise `DriverError` unless a call gave success."""
    if status != 0:
        raise DriverError(call, status)


def handles(library: ctypes.CDLL, call: str, arguments: Sequence[object], nothing: Sequence[int] = ()) -> list[int]:
    """Ask a function that lists handles: first how many, then which.  ``nothing`` are its errors for "there is none".

    Raise `DriverError`.
    """
    function = getattr(library, call)
    count = ctypes.c_uint32(0)
    status = function(*arguments, 0, None, ctypes.byref(count))
    if status in nothing:
        return []
    check(call, status)
    wanted = min(count.value, MOST)
    if not wanted:
        return []
    found = (ctypes.c_void_p * wanted)()
    check(call, function(*arguments, wanted, found, None))
    return [handle for handle in found if handle]


def text_of(library: ctypes.CDLL, call: str, handle: int, what: int) -> str:
    """Ask a function for one text.  Raise `DriverError`."""
    function = getattr(library, call)
    which = (ctypes.c_void_p(handle), ctypes.c_uint32(what))
    size = ctypes.c_size_t(0)
    check(call, function(*which, ctypes.c_size_t(0), None, ctypes.byref(size)))
    if size.value > LONGEST:
        raise DriverError(call, 0)
    buffer = ctypes.create_string_buffer(size.value + 1)
    check(call, function(*which, size, buffer, None))
    return text(buffer.raw)
