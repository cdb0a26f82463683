"""What the driver writes of a lookup when it is asked to (``BinaryCacheTrace``): what decides about a program.  Pure.

Beside ``HASH.trace`` lies ``HASH.input``: the bytes that were hashed, which are SPIR-V, or source text with a zero at
its end that the driver added.  The options in a trace are any text, so what was read counts only if the hash made of it
is the name (`KeyMaker.key`).
"""

from __future__ import annotations

import hashlib
import re
import struct
from typing import TYPE_CHECKING, Final

from msgspec import Struct
from msgspec.structs import replace

from xpucached.kinds.neo import lookup_key

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from xpucached.domain.stores import Store

LONGEST: Final = 1 << 20
"""Bytes of a trace; of oneDNN's programs it has some thousand."""

_TITLES: Final = (
    "igcRevision",
    "input",
    "options",
    "internal options",
    "specialization constants",
    "platform",
    "feature table",
    "workaround table",
)
_NONE: Final = b"(null)"
_COMPILER: Final = re.compile(rb"(.*)\n  libSize=(\d{1,20})\n  libMTime=(-?\d{1,20})\n\Z", re.DOTALL)
_CONSTANTS: Final = re.compile(rb"specIds=(\w*)\nspecValues=(\w*)\n\Z")
_BYTES: Final = re.compile(rb"(?:(?:ffffff[89a-f]|[0-7])[0-9a-f])*\Z")
_BYTE: Final = re.compile(rb"(?:ffffff)?(..)")
_TABLE: Final = re.compile(rb"((?:[0-9a-f]{2}\.)*)\n?\Z")
_FIELDS: Final = (
    *("eProductFamily", "ePCHProductFamily", "eDisplayCoreFamily", "eRenderCoreFamily", "ePlatformType"),
    *("usDeviceID", "usRevId", "usDeviceID_PCH", "usRevId_PCH", "eGTType"),
)
_PLATFORM: Final = re.compile(rb"".join(rb"  %s=(\d{1,10})\n" % name.encode() for name in _FIELDS) + rb"\Z")
_PLATFORM_BYTES: Final = struct.Struct("<5I4HI")
_SEPARATOR: Final = b"----"
_REMEMBERED: Final = 16
"""Inputs whose hash is begun; programs of one library are mostly made of one text with different options."""
_OPENCL: Final = b"-ocl-version"
_SPIRV: Final = b"\x03\x02\x23\x07"


class CompilerFile(Struct, frozen=True):
    """What the driver takes for the identity of a compiler: a file of another size or time is another compiler."""

    size: int
    modified: int  #: seconds since 1970
    revision: bytes | None = None  #: what the library says of itself; Debian's says nothing


class Lookup(Struct, frozen=True):
    """What the driver was asked to compile, but for the input."""

    compiler: CompilerFile
    options: bytes
    internal: bytes  #: options that the driver adds, extensions above all
    constants: bytes  #: ids of specialization constants, four bytes each
    values: bytes  #: eight bytes for each
    platform: tuple[int, ...]  #: as `_FIELDS`
    features: bytes
    workarounds: bytes

    @property
    def device(self) -> int:
        """The GPU's PCI device id."""
        return self.platform[5]

    @property
    def revision(self) -> int:
        """The GPU's revision."""
        return self.platform[6]

    @property
    def opencl(self) -> bool:
        """Whether it was asked through OpenCL, and not through Level Zero."""
        return _OPENCL in self.internal


def read(data: bytes) -> Lookup:
    """Read a trace.  Raises ValueError for what is none."""
    if len(data) > LONGEST:
        raise ValueError("it is too long for a trace")
    parts = _parts(data)
    compiler = _COMPILER.match(parts["igcRevision"])
    constants = _CONSTANTS.match(parts["specialization constants"])
    platform = _PLATFORM.match(parts["platform"])
    if compiler is None or constants is None or platform is None:
        raise ValueError("its parts are not those of a trace")
    numbers = tuple(map(int, platform.groups()))
    try:
        _PLATFORM_BYTES.pack(*numbers)
        struct.pack("<Qq", int(compiler[2]), int(compiler[3]))
    except struct.error as error:
        raise ValueError("a number is too large") from error
    return Lookup(
        CompilerFile(int(compiler[2]), int(compiler[3]), None if compiler[1] == _NONE else compiler[1]),
        parts["options"].removesuffix(b"\n"),
        parts["internal options"].removesuffix(b"\n"),
        _signed(constants[1]),
        _signed(constants[2]),
        numbers,
        _table(parts["feature table"]),
        _table(parts["workaround table"]),
    )


def _parts(data: bytes) -> Mapping[str, bytes]:
    """Divide a trace at its titles, which come in one order, each once."""
    parts: dict[str, bytes] = {}
    at, before = 0, ""
    for title in _TITLES:
        mark = b"---- " + title.encode() + b" ----\n"
        # The first that follows: options may hold such a line, and the hash then tells that it was taken wrongly.
        found = data.find(mark, at)
        if found < 0 or (found > 0 and data[found - 1 : found] != b"\n") or (not before and found):
            raise ValueError(f"it has no {title}")
        if before:
            parts[before] = data[at:found]
        at, before = found + len(mark), title
    parts[before] = data[at:]
    return parts


def _signed(digits: bytes) -> bytes:
    """Read bytes that were printed as signed numbers: those from 0x80 on have eight digits."""
    if _BYTES.match(digits) is None:
        raise ValueError("its constants are no bytes")
    return bytes.fromhex(b"".join(_BYTE.findall(digits)).decode())


def _table(text: bytes) -> bytes:
    match = _TABLE.match(text)
    if match is None:
        raise ValueError("a table is no bytes")
    return bytes.fromhex(match[1].replace(b".", b"").decode())


def is_spirv(given: bytes) -> bool:
    """Return whether an input is SPIR-V, and not source text."""
    return given.startswith(_SPIRV)


def source(given: bytes) -> bytes:
    """Return what a program handed in: of a text without the zero that the driver added."""
    return given if is_spirv(given) else given.removesuffix(b"\0")


class KeyMaker:
    """Makes the names of entries; an input that comes again under the same compiler is hashed once."""

    def __init__(self) -> None:
        """Begin with nothing known."""
        self._begun: dict[tuple[CompilerFile, bytes], lookup_key.State] = {}  # by the digest of the input

    def key(self, lookup: Lookup, given: bytes, ip: int | None, compiler: CompilerFile | None = None) -> str:
        """Return the name of the entry for a GPU with this IP version; releases before 24.26 do not hash one.

        With ``compiler`` it is the name that the entry has under that one, if the driver passes the same otherwise.
        """
        if compiler is not None:
            lookup = replace(lookup, compiler=compiler)
        state = self._with_input(lookup.compiler, given)
        for part in (
            *(_SEPARATOR, lookup.options, _SEPARATOR, lookup.internal, _SEPARATOR, lookup.constants, lookup.values),
            *(_SEPARATOR, _PLATFORM_BYTES.pack(*lookup.platform)),
            *(_SEPARATOR, _number_of(lookup.features), _SEPARATOR, _number_of(lookup.workarounds)),
            *(_SEPARATOR, b"" if ip is None else struct.pack("<I", ip)),
        ):
            state = lookup_key.update(state, part)
        return f"{lookup_key.value(state):016x}"

    def _with_input(self, compiler: CompilerFile, given: bytes) -> lookup_key.State:
        known = (compiler, hashlib.sha256(given).digest())
        state = self._begun.get(known)
        if state is None:
            if len(self._begun) >= _REMEMBERED:
                self._begun.clear()
            state = lookup_key.begun()
            for part in (
                *(_SEPARATOR, compiler.revision or b"", struct.pack("<Q", compiler.size)),
                *(struct.pack("<q", compiler.modified), _SEPARATOR, given),
            ):
                state = lookup_key.update(state, part)
            self._begun[known] = state
        return state


def _number_of(table: bytes) -> bytes:
    return str(lookup_key.value(lookup_key.update(lookup_key.begun(), table))).encode()


def unkept(stores: Sequence[Store], lines: Iterable[str]) -> str:  # noqa: ARG001
    """Return nothing: the driver tells in files, and nothing in lines; see `Recorder.unkept`."""
    return ""
