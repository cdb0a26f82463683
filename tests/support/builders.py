"""Builders: byte-exact SYCL stores, written without the program that reads them (formats: ``docs/kinds.md``)."""

from __future__ import annotations

import os
import struct
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from xpucached.domain.names import KindName
from xpucached.domain.targets import Target

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_MASK: Final = (1 << 64) - 1
_MULTIPLIER: Final = 0xC6A4A7935BD1E995
_SEED: Final = 0xC70F6907


def sycl_target(platform: str, device: str, version: str, driver: str) -> Target:
    """Make what an entry of these four strings is for."""
    return Target(KindName("sycl"), platform, device, driver, (("version", version),))


def string_hash(data: bytes) -> int:
    """Compute libstdc++'s ``std::hash<std::string>`` on a 64-bit host, which names the directories."""
    whole = len(data) // 8 * 8
    state = _SEED ^ (len(data) * _MULTIPLIER & _MASK)
    for (word,) in struct.iter_unpack("<Q", data[:whole]):
        mixed = _shift(word * _MULTIPLIER & _MASK) * _MULTIPLIER & _MASK
        state = (state ^ mixed) * _MULTIPLIER & _MASK
    if data[whole:]:
        state = (state ^ int.from_bytes(data[whole:], "little")) * _MULTIPLIER & _MASK
    return _shift(_shift(state) * _MULTIPLIER & _MASK)


def _shift(value: int) -> int:
    return value ^ value >> 47


def framed(*fields: bytes) -> bytes:
    """Put each field's length in front of it, as the runtime does."""
    return b"".join(struct.pack("<Q", len(one)) + one for one in fields)


def spirv(*kernels: str, size: int = 0) -> bytes:
    """Make a SPIR-V module that holds these kernels, padded with OpNop to at least ``size`` bytes."""
    words = [0x07230203, 0x00010100, 0x0006000E, 100, 0]
    for number, kernel in enumerate(kernels, start=1):
        name = kernel.encode() + b"\0"
        name += b"\0" * (-len(name) % 4)
        # OpEntryPoint: execution model 6 is Kernel.
        words += [(3 + len(name) // 4) << 16 | 15, 6, number, *struct.unpack(f"<{len(name) // 4}I", name)]
    words += [1 << 16] * max(0, size // 4 - len(words))
    return struct.pack(f"<{len(words)}I", *words)


def bomb(levels: int = 40) -> bytes:
    """Make a small, valid SPIR-V module whose one kernel grows to 2**levels calls when its functions are inlined."""

    def op(code: int, *operands: int) -> list[int]:
        return [(len(operands) + 1) << 16 | code, *operands]

    void, number, pointer, kernel_type, function_type, one, kernel, parameter = range(1, 9)
    functions = [20 + 10 * level for level in range(levels + 1)]
    words = [0x07230203, 0x00010000, 0, functions[-1] + 10, 0]
    for capability in (4, 5, 6):  # Addresses, Linkage, Kernel
        words += op(17, capability)
    words += op(14, 2, 2)  # OpMemoryModel Physical64 OpenCL
    words += op(15, 6, kernel, *struct.unpack("<2I", b"bomb\0\0\0\0"))
    words += op(19, void) + op(21, number, 32, 0) + op(32, pointer, 5, number)
    words += op(33, kernel_type, void, pointer) + op(33, function_type, number, number) + op(43, number, one, 7)
    words += op(54, void, kernel, 0, kernel_type) + op(55, pointer, parameter) + op(248, 9)
    words += op(61, number, 10, parameter) + op(57, number, 11, functions[0], 10) + op(62, parameter, 11)
    words += op(253) + op(56)
    for level, name in enumerate(functions):
        words += op(54, number, name, 1, function_type) + op(55, number, name + 1) + op(248, name + 2)
        if level == levels:
            words += op(128, number, name + 3, name + 1, one) + op(254, name + 3) + op(56)
            continue
        called = functions[level + 1]
        words += op(57, number, name + 3, called, name + 1) + op(132, number, name + 4, name + 3, one)
        words += op(57, number, name + 5, called, name + 4) + op(198, number, name + 6, name + 3, name + 5)
        words += op(254, name + 6) + op(56)
    return struct.pack(f"<{len(words)}I", *words)


def native(size: int = 256, *sections: tuple[bytes, bytes]) -> bytes:
    """Make what a driver's compiler writes: a 64-bit ELF with these sections, of at least ``size`` bytes."""
    every = ((b"", b""), *sections, (b".filling", b"\1" * max(0, size - 64 * (len(sections) + 4))))
    names = b"\0".join(name for name, _ in every) + b"\0.shstrtab\0"
    count = len(every) + 1
    body, rows = b"", b""
    for name, content in (*every, (b".shstrtab", names)):
        place = names.index(name + b"\0")
        kind = 0 if not name else 3 if content is names else 1
        offset = 64 * (count + 1) + len(body)
        rows += struct.pack("<IIQQQQIIQQ", place, kind, 0, 0, offset, len(content), 0, 0, 1, 0)
        body += content
    head = b"\x7fELF\2\1\1" + bytes(9)
    head += struct.pack("<HHIQQQIHHHHHH", 0xFF04, 62, 1, 0, 0, 64, 0, 64, 0, 0, 64, count, count - 1)
    return head + rows + body


@dataclass(frozen=True, slots=True)
class Slot:
    """One slot of one leaf, and where its files are."""

    leaf: Path
    number: int

    @property
    def bin(self) -> Path:
        """The compiled program."""
        return self.leaf / f"{self.number}.bin"

    @property
    def src(self) -> Path:
        """What it was compiled from."""
        return self.leaf / f"{self.number}.src"

    @property
    def access_time(self) -> Path:
        """When the runtime wrote it, in nanoseconds."""
        return self.leaf / f"{self.number}_access_time.txt"

    @property
    def lock(self) -> Path:
        """The file whose mere existence is the lock."""
        return self.leaf / f"{self.number}.lock"

    def take_lock(self, *, age: float = 0) -> None:
        """Leave a lock as a writer makes it, ``age`` seconds ago."""
        self.lock.touch(mode=0o200, exist_ok=False)
        _made(self.lock, time.time() - age)

    def cut(self, file: Path, size: int) -> None:
        """Cut a file short, as a power failure or a full disk does; its times stay."""
        stat = file.stat()
        os.truncate(file, size)
        os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))


@dataclass(frozen=True, slots=True)
class SyclStore:
    """A SYCL store to fill.  Nothing exists before the first `add`."""

    root: Path
    defaults: Mapping[str, str] = field(
        default_factory=lambda: {
            "platform": "Intel(R) OpenCL",
            "device": "Intel(R) Xeon(R) Processor",
            "version": "OpenCL 3.0 (Build 0)",
            "driver": "2025.20.12.0.09_233955.xmain-hotfix",
        }
    )

    def add(
        self,
        kernel: str = "_ZTS6kernel",
        *,
        platform: str | None = None,
        device: str | None = None,
        version: str | None = None,
        driver: str | None = None,
        options: str = "",
        constants: bytes = b"",
        image: bytes | None = None,
        binary: bytes | None = None,
        size: int = 256,
        slot: int = 0,
        age: float = 3600,
        access_time: bool = True,
        without: tuple[str, ...] = (),
    ) -> Slot:
        """Write one entry, made ``age`` seconds ago.

        ``image`` defaults to a SPIR-V module with that kernel, ``binary`` to native code of ``size`` bytes.  Runtimes
        before 2025.2 write no ``access_time``.  Suffixes in ``without`` (``bin``, ``src``) are left out.
        """
        given = {"platform": platform, "device": device, "version": version, "driver": driver}
        identity = "/".join(given[part] or self.defaults[part] for part in given).encode()
        image = spirv(kernel) if image is None else image
        names = [str(string_hash(part)) for part in (identity, image, constants, options.encode())]
        made = Slot(self.root.joinpath(*names), slot)
        made.leaf.mkdir(parents=True, exist_ok=True)
        moment = time.time() - age
        if "bin" not in without:
            made.bin.write_bytes(struct.pack("<Q", 1) + framed(native(size) if binary is None else binary))
            _made(made.bin, moment)
        if "src" not in without:
            made.src.write_bytes(framed(identity, options.encode(), constants, image))
            _made(made.src, moment)
        if access_time:
            made.access_time.write_text(str(int(moment * 1e9)), encoding="ascii")
            _made(made.access_time, moment)
        return made

    def add_intermediate(self, key: str = "A" * 43 + "=", *, bitcode: bytes = b"BC\xc0\xde", age: float = 3600) -> Path:
        """Write a run-time compiled source's intermediate code, as 2025.2 and later do; gives its directory."""
        place = self.root / "ext_kernel_compiler" / key
        place.mkdir(parents=True)
        moment = time.time() - age
        (place / "ir.bin").write_bytes(struct.pack("<Q", 1) + framed(bitcode))
        (place / "ir_access_time.txt").write_text(str(int(moment * 1e9)), encoding="ascii")
        for path in place.iterdir():
            _made(path, moment)
        return place


def _made(path: Path, moment: float) -> None:
    os.utime(path, (moment, moment))
