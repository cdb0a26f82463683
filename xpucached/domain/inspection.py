"""What programs bring for devices, and what a device makes of it.  Pure."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct


class CodeForm(StrEnum):
    """In which form a device image is."""

    SPIRV = "spirv"  #: compiled when it is first used
    NATIVE = "native"  #: for the GPUs that it names, an archive or a single program
    PATCH_TOKENS = "patch-tokens"  #: for a GPU, as compilers wrote it until 2022
    CPU = "cpu"  #: for a processor
    BITCODE = "bitcode"  #: of LLVM, for the linker
    COMPRESSED = "compressed"  #: nobody here can unpack it
    OTHER = "other"  #: for another vendor's devices
    UNKNOWN = "unknown"


class Availability(StrEnum):
    """What becomes of a kernel on a device."""

    READY = "ready"  #: runs as it is
    COMPILED = "compiled"  #: is compiled when it is first used
    ABSENT = "absent"  #: there is no code that this device takes
    UNKNOWN = "unknown"


class InspectedDevice(Struct, frozen=True):
    """A device that was asked about."""

    name: str  #: as people call it
    architecture: str
    version: str = ""  #: its IP version; empty for a processor
    here: bool = False  #: it is in this host
    assumed: bool = False  #: nobody told its stepping, so the usual one is taken


class Outlook(Struct, frozen=True):
    """What becomes of the kernels of one file, or of all, on one device."""

    architecture: str
    ready: int = 0
    compiled: int = 0
    absent: int = 0
    unknown: int = 0
    disputed: int = 0  #: of the unknown, those with code for other GPUs beside SPIR-V: a runtime may take it, and fail
    compile_size: int = 0  #: bytes of the images that are compiled
    seconds: float | None = None  #: about so long they are compiled; None: nobody measured it here


class InspectedFile(Struct, frozen=True):
    """A file that brings device images."""

    name: str
    images: int
    kernels: int
    forms: tuple[tuple[str, int], ...]  #: how many images there are of each form
    outlooks: tuple[Outlook, ...]  #: one for each device
    notes: tuple[str, ...] = ()
    used: int | None = None  #: kernels of it that a warm model has compiled; None: no model was asked about
    share: float | None = None  #: of all that the model has compiled, by bytes of SPIR-V


class Inspection(Struct, frozen=True):
    """What a file, a wheel or an environment brings."""

    target: str
    devices: tuple[InspectedDevice, ...]
    files: tuple[InspectedFile, ...]
    totals: tuple[Outlook, ...]
    looked_at: int  #: files that were opened
    skipped: tuple[tuple[str, int], ...] = ()  #: reasons, and how many files were not read for each
    notes: tuple[str, ...] = ()
    seconds: float = 0.0
    unread: bool = False  #: something could not be read, or does not hold together
    kept_in: tuple[str, ...] = ()  #: which caches keep what is compiled
    places: tuple[str, ...] = ()  #: the files and folders that were looked through
