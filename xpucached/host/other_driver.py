"""Observe: a driver that lies in a folder and is not installed; walks that folder, asks the driver in children."""

from __future__ import annotations

import contextlib
import itertools
import os
import stat
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from xpucached import mounts, sockets
from xpucached.domain.host import Device, OtherDriver
from xpucached.errors import HostError, NotFound, RequestError
from xpucached.host import simulated_gpu
from xpucached.host.drivers import driver_files, stamp
from xpucached.host.gpu_devices import architecture, kernel
from xpucached.processes.driver_probe import BACKENDS, ask

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from xpucached.domain.host import DriverFile, Problem

_OPENCL: Final = ("libintelocl.so", "libigdrcl.so")
_LEVEL_ZERO: Final = "libze_intel_gpu.so.1"
_GPU_DRIVERS: Final = ("libigdrcl.so", _LEVEL_ZERO)
_GPU_COMPILERS: Final = ("libigc.so.2", "libigc.so.1", "libigdfcl.so.2", "libigdfcl.so.1")
_LOADER: Final = "ld-linux-x86-64.so.2"
# Whatever else lies beside these belongs to the driver, too: its compiler, its loaders, its C++ library.
_HOMES: Final = (
    *_OPENCL,
    _LEVEL_ZERO,
    _LOADER,
    *_GPU_COMPILERS,
    "libze_loader.so.1",
    "libOpenCL.so.1",
    "libgcc_s.so.1",
)

_DEEPEST: Final = 8
_MOST: Final = 200_000  # names in the folder: a whole system's image has about so many


@dataclass(slots=True)
class _Found:
    """What lies in a folder, by file name: the first of each, in the order of the walk."""

    files: dict[str, Path] = field(default_factory=dict)
    beside: dict[str, Path] = field(default_factory=dict)  #: installed drivers that would meet what lies there
    whole: bool = True  #: whether all of it was looked at
    closed: str = ""  #: the first folder that could not be looked into, and why

    def home(self, name: str) -> Path | None:
        path = self.files.get(name)
        return path.parent if path is not None else None


def unpacked(
    root: Path | None,
    device: str | None,
    variables: Mapping[str, str],
    timeout: float,
    scratch: Path,
    *,
    replaced: frozenset[str] | None = None,
) -> OtherDriver:
    """Ask a driver that programs here do not use who it is.

    ``root`` is the folder in which it lies; None is the installed driver, and then there must be a ``device`` that it
    shall pretend (see `simulated.pretend`).  ``variables`` are what programs on this host have.  ``scratch`` is an
    empty directory that lasts as long as the driver is used.  What is valid for its devices is for the kinds to say.
    With ``replaced`` only these packages' files are in the folder, and take the place of those that are installed: what
    is not among them stays as it is.  Raises `NotFound`, `RequestError` and `HostError`.
    """
    pretended = simulated_gpu.pretend(device) if device is not None else {}
    if root is None:
        if device is None:
            raise RequestError("neither a folder with a driver nor a device to pretend was named")
        asked = ("level-zero", "opencl")
        return _ask({**variables, **pretended}, asked, [()], timeout, "the installed driver", device, driver_files)
    _check(root)
    found = _walk(root)
    installed = driver_files(variables) if replaced is not None else ()
    if replaced is not None:
        _complete(found, installed, replaced)
    who = str(root) if found.whole else f"{root}, of which {_MOST} names were looked at and no more,"
    theirs, backends = _variables(found, variables, scratch)
    if not backends and found.closed:
        raise HostError(f"{found.closed}, and no driver was found beside it", hint="may you read all of that folder?")
    if not backends:
        names = ", ".join((*_OPENCL, _LEVEL_ZERO))
        hint = f"expected one of {names} in it, as unpacking the driver's packages gives them"
        raise HostError(f"there is no driver of Intel's in {who.removesuffix(',')}", hint=hint)
    commands = list(_commands(found, theirs))

    def files(given: Mapping[str, str]) -> tuple[DriverFile, ...]:
        if replaced is None:
            return _of(root, driver_files(given))
        return _overlaid(root, driver_files(given), installed, replaced)

    return _ask({**theirs, **pretended}, backends, commands, timeout, who, device, files)


def _check(root: Path) -> None:
    """Refuse a folder in which others could put code that we would run."""
    try:
        status = root.stat()
    except OSError as error:
        raise NotFound(f"{root}: {error.strerror}", hint="give the folder in which the driver was unpacked") from error
    if not stat.S_ISDIR(status.st_mode):
        raise NotFound(f"{root} is not a folder", hint="give the folder in which the driver was unpacked")
    try:
        # Its files are loaded by their paths, for as long as it is compiled with.
        sockets.check_way(os.fspath(root / "driver"), sockets.Trusted(groups=True))
    except sockets.UntrustedPeer as error:
        raise _open_to_others(error.place) from error
    except OSError as error:
        raise NotFound(f"{root}: {error.strerror}", hint="give the folder in which the driver was unpacked") from error


def _open_to_others(place: str | Path) -> RequestError:
    hint = "its files are loaded: unpack the driver where only you or root can write"
    return RequestError(
        f"{place} belongs to somebody else, or everybody may write there, or a group of users", hint=hint
    )


def _see_closed(folder: Path, names: Iterable[str], root: Path) -> None:
    """See that nobody else can change what would be loaded from a folder.  Raises `RequestError`."""
    trusted = sockets.Trusted(groups=True)
    for path in (*(folder / name for name in names), folder, *folder.parents):
        real = Path(mounts.real(path))
        for step in (one for one in (real, real.parent) if one.is_relative_to(root)):
            with contextlib.suppress(OSError):
                status = step.stat()
                if status.st_uid not in trusted or trusted.others_write(status):
                    raise _open_to_others(step)


def _walk(root: Path) -> _Found:
    """Find the driver's files.  Links are not followed to other folders; a link to a file in this one counts."""
    found = _Found()
    left = _MOST
    real = Path(mounts.real(root))

    def closed(error: OSError) -> None:
        found.closed = found.closed or f"{error.filename}: {error.strerror}"

    for folder, folders, names in os.walk(root, onerror=closed):
        depth = len(Path(folder).relative_to(root).parts)
        folders[:] = sorted(folders) if depth < _DEEPEST else []
        left -= len(names) + len(folders)
        if left < 0:
            found.whole = False
            break
        for name in set(names).intersection(_HOMES):
            path = Path(folder, name)
            target = Path(mounts.real(path))
            if target.is_relative_to(real) and target.is_file():
                if name not in found.files:
                    _see_closed(path.parent, names, real)
                found.files.setdefault(name, path)
    return found


def _variables(found: _Found, variables: Mapping[str, str], scratch: Path) -> tuple[Mapping[str, str], tuple[str, ...]]:
    """Return what makes a program load this driver and no other, and through which interfaces it can be asked."""
    homes = list(dict.fromkeys(home for name in _HOMES if name != _LOADER and (home := found.home(name)) is not None))
    theirs = dict(variables)
    backends: list[str] = []
    vendors = scratch / "vendors"
    every = {**found.beside, **found.files}
    drivers = [path for name in _OPENCL if (path := every.get(name)) is not None]
    try:
        vendors.mkdir()
        for number, path in enumerate(drivers):
            (vendors / f"{number}.icd").write_text(f"{path}\n", encoding="utf-8")
            backends = ["opencl"]
    except OSError as error:
        raise HostError(f"{scratch} cannot be written: {error.strerror}", hint="make room there") from error
    level_zero = every.get(_LEVEL_ZERO)
    if level_zero is not None:
        backends.append("level-zero")
        theirs["ZE_ENABLE_ALT_DRIVERS"] = os.fspath(level_zero)
    # One loader reads the first two variables, another the third; the folder holds what is in the third.
    # Empty and not left out: our own environment may name the installed driver there, and children begin with that.
    theirs["OCL_ICD_FILENAMES"] = ""
    theirs["OCL_ICD_VENDORS"] = theirs["OPENCL_VENDOR_PATH"] = os.fspath(vendors)
    before = [one for one in variables.get("LD_LIBRARY_PATH", "").split(":") if one]
    theirs["LD_LIBRARY_PATH"] = ":".join((*map(os.fspath, homes), *before))
    return theirs, tuple(one for one in BACKENDS if one in backends)


def _commands(found: _Found, variables: Mapping[str, str]) -> Iterator[tuple[str, ...]]:
    """Yield what a command may have to begin with: nothing, or the C library that lies beside the driver."""
    yield ()
    loader = found.files.get(_LOADER)
    if loader is not None:
        places = (variables["LD_LIBRARY_PATH"], *_SYSTEM)
        yield (os.fspath(loader), "--library-path", ":".join(places))


_SYSTEM: Final = ("/usr/lib/x86_64-linux-gnu", "/lib/x86_64-linux-gnu", "/usr/lib64", "/lib64")


def _ask(
    variables: Mapping[str, str],
    backends: Sequence[str],
    commands: Sequence[tuple[str, ...]],
    timeout: float,
    who: str,
    device: str | None,
    files_of: Callable[[Mapping[str, str]], tuple[DriverFile, ...]],
) -> OtherDriver:
    problems: Sequence[Problem] = ()
    for command in commands:
        report = ask(variables, timeout, backends=backends, command=command)
        offered = tuple(one for one in report.answers if device is None or _pretends(one.platform))
        if offered:
            files = files_of(variables)
            pretended = "\n".join(f"{name}={text}" for name, text in sorted(variables.items()) if name in _TELLING)
            return OtherDriver(
                (),
                stamp(files, f"{kernel()}\n{pretended}"),
                dict(variables),
                command,
                device,
                devices=(Device(offered[0].device, architecture(offered[0]), answers=offered),),
                driver=files,
            )
        problems = report.problems
    said = "; ".join(dict.fromkeys(itertools.islice((one.message for one in problems), 4)))
    what = f"pretends no {device}" if device is not None else "offers no device"
    hint = (
        "simulating needs Intel's driver for GPUs" if device is not None else "is it whole, and made for this machine?"
    )
    raise HostError(f"{who} {what}{': ' if said else ''}{said}", hint=hint)


def _of(root: Path, files: tuple[DriverFile, ...]) -> tuple[DriverFile, ...]:
    """Leave out what lies elsewhere of a library that lies in a driver's folder: programs are led to that one."""
    real = Path(mounts.real(root))
    inside = {_stem(one) for one in files if one.target.is_relative_to(real)}
    return tuple(one for one in files if one.target.is_relative_to(real) or _stem(one) not in inside)


def _complete(found: _Found, installed: Iterable[DriverFile], replaced: frozenset[str]) -> None:
    """Add the installed drivers that would meet a compiler which lies in the folder without them."""
    if any(found.home(name) is not None for name in _GPU_COMPILERS):
        for file in installed:
            name = file.path.name
            if name in _GPU_DRIVERS and name not in found.files and not _is_of(file, replaced):
                found.beside[name] = file.path


def _overlaid(
    root: Path, files: Iterable[DriverFile], installed: Iterable[DriverFile], replaced: frozenset[str]
) -> tuple[DriverFile, ...]:
    """Return the driver's files as they will be: those in the folder, and what is installed and not replaced by it.

    Of a compiler whose package stays beside its successor both count, as they will.
    """
    real = Path(mounts.real(root))
    inside = [one for one in files if one.target.is_relative_to(real)]
    names = {one.path.name for one in inside}
    stay = [one for one in installed if not _is_of(one, replaced) and one.path.name not in names]
    return tuple(sorted((*inside, *stay), key=lambda one: (one.path, one.target)))


def _is_of(file: DriverFile, packages: frozenset[str]) -> bool:
    return file.package is not None and file.package.partition(" ")[0] in packages


def _stem(file: DriverFile) -> str:
    return file.target.name.partition(".so")[0]


_TELLING: Final = ("ProductFamilyOverride", "HardwareInfoOverride", "ForceDeviceId", "OverrideDeviceName")


def _pretends(platform: str) -> bool:
    """Return whether a platform is a GPU's: only that driver knows how to pretend."""
    return "Level-Zero" in platform or platform.endswith("Graphics")
