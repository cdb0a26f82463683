"""Where programs keep their SYCL stores, by the runtime's own rules, and how they are told to."""

from __future__ import annotations

import itertools
import math
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from xpucached import deadlines, mounts
from xpucached.domain.host import Process
from xpucached.kinds import fs
from xpucached.kinds.sycl.entry_format import NUMBER, RTC

LIBRARIES: Final = ("libsycl",)

OFF: Final[Mapping[str, str]] = {"SYCL_CACHE_PERSISTENT": "0"}

EVERYWHERE: Final[Mapping[str, str]] = {}

OPTION_VARIABLES: Final = ("SYCL_PROGRAM_COMPILE_OPTIONS",)

_STANDARD: Final = (
    *("/opt/intel/oneapi/compiler/latest/lib", "/usr/local/lib"),
    *("/usr/lib/x86_64-linux-gnu", "/usr/lib64"),
)
"""Where the runtime lies on hosts that have it installed for everybody."""

_DEPTH: Final = 4
_LOOKED_INTO: Final = 16

_FOLDERS: Final = 100
"""So many folders of a process are searched for the configuration file."""

_BOUNDS: Final[Mapping[str, tuple[int, float | None]]] = {
    "SYCL_CACHE_MIN_DEVICE_IMAGE_SIZE": (0, math.inf),
    "SYCL_CACHE_MAX_DEVICE_IMAGE_SIZE": (0, 1 << 30),
    "INTEL_ENABLE_OFFLOAD_ANNOTATIONS": (0, None),
}
"""What keeps programs out of the cache, by values between these two, or by any: larger ones are seldom made."""
_NUMBER: Final = re.compile(r"\s*\+?(\d{1,20})")

_CONFIG_LIMIT: Final = 64 << 10
_CONFIG_VALUE: Final = 164
"""The runtime cuts a directory from its configuration file here."""


def enable(root: Path) -> Mapping[str, str]:
    """Return the variables that switch the cache on, into this store, with the runtime's own eviction off."""
    # A limit of 0 is the default; saying it overrides a host-wide sycl.conf.  Two evictors in one store fight, and the
    # runtime's hangs programs on a lock left behind.
    return {"SYCL_CACHE_PERSISTENT": "1", "SYCL_CACHE_DIR": os.fspath(root), "SYCL_CACHE_MAX_SIZE": "0"}


def _configuration(process: Process) -> tuple[Mapping[str, str], str]:
    """Read the runtime's configuration file: named by a variable, or ``sycl.conf`` beside ``libsycl.so``."""
    named = process.variables.get("SYCL_CONFIG_FILE_NAME")
    if named:
        candidates = [Path(named)]
    else:
        folders = [path.parent for path in process.libraries if path.name.startswith("libsycl.so")]
        folders += [Path(part) for part in process.variables.get("LD_LIBRARY_PATH", "").split(":") if part]
        if process.pid == 0:
            # Nobody's process: what any program of this user would meet.
            folders += map(Path, _STANDARD)
        candidates = [folder / "sycl.conf" for folder in dict.fromkeys(folders[:_FOLDERS])]
    if not candidates:
        return {}, ""
    try:
        # A program may lie, or look, where nobody answers.
        return deadlines.ask(("configuration", *candidates), lambda: _read(candidates))
    except TimeoutError:
        return {}, ""


def _read(candidates: Sequence[Path]) -> tuple[Mapping[str, str], str]:
    for path in candidates:
        if not path.is_absolute():
            continue
        # It may be a link, which the runtime follows.
        real = Path(mounts.real(path))
        try:
            with (
                fs.folder(os.fspath(real.parent)) as folder,
                fs.regular_file(folder, real.name) as (descriptor, _),
            ):
                content = fs.read(descriptor, _CONFIG_LIMIT).decode("utf-8", "replace")
        except (OSError, ValueError):
            continue
        lines = (line for line in content.splitlines() if "#" not in line and "=" in line)
        return dict(line.split("=", 1) for line in lines), os.fspath(path)
    return {}, ""


def locate(process: Process) -> tuple[Path, str] | None:
    """Return where a process keeps its store: by the runtime's own rules, the environment before the file."""
    variables = process.variables
    if process.pid == 0:
        variables = {"SYCL_CACHE_PERSISTENT": "1", **variables}
    configured, file = _configuration(process)
    root: str | None = None
    via = process.name if process.pid == 0 else f"process {process.pid} ({process.name})"
    if "SYCL_CACHE_DIR" in variables:
        # An empty value switches the cache off; `~` is not expanded.
        root = variables["SYCL_CACHE_DIR"]
    elif "SYCL_CACHE_DIR" in configured:
        # For the runtime it also ends at a zero byte.
        root, via = configured["SYCL_CACHE_DIR"][:_CONFIG_VALUE].partition("\0")[0], file
    elif variables.get("SYCL_CACHE_PERSISTENT", configured.get("SYCL_CACHE_PERSISTENT")) == "1":
        if "XDG_CACHE_HOME" in variables:
            root = variables["XDG_CACHE_HOME"] + "/libsycl_cache"
        elif "HOME" in variables:
            root = variables["HOME"] + "/.cache/libsycl_cache"
        if variables.get("SYCL_CACHE_PERSISTENT") is None and file:
            via = file
    if not root:
        return None
    if not root.startswith("/") and process.directory is None:
        return None
    path = Path(os.path.normpath(root if root.startswith("/") else f"{process.directory}/{root}"))
    return path, via


def enabled(process: Process) -> bool:
    """Return whether the cache is on in a process, by its environment or by the runtime's configuration file."""
    configured, _ = _configuration(process)
    return process.variables.get("SYCL_CACHE_PERSISTENT", configured.get("SYCL_CACHE_PERSISTENT")) == "1"


def bounds(process: Process) -> str:
    """Return by which variable, or line of a file, a process leaves out programs; see `Discovery.bounds`."""
    configured, file = _configuration(process)
    for name, (least, most) in _BOUNDS.items():
        given = process.variables.get(name)
        value = configured.get(name, "") if given is None else given
        number = _NUMBER.match(value)
        if value if most is None else number is not None and least < int(number[1]) < most:
            return f"{name}={value}{f' in {file}' if given is None else ''}"
    return ""


def configuration(process: Process) -> str:
    """Return the runtime's configuration file, if there is one; see `Discovery.configuration`."""
    return _configuration(process)[1]


def recognise(root: Path) -> bool:
    """Return whether a directory looks like a store; see `Discovery.recognise`."""
    return os.path.isdir(root / RTC) or _is_tree(os.fspath(root), _DEPTH)  # noqa: PTH112 - pathlib's question may raise


def _is_tree(place: str, depth: int) -> bool:
    """Return whether directories with numbers for names lie in each other, so deep; of each a few are looked at."""
    try:
        with os.scandir(place) as children:
            numbers = (one.path for one in children if NUMBER.match(one.name) and one.is_dir(follow_symlinks=False))
            found = list(itertools.islice(numbers, _LOOKED_INTO))
    except OSError:
        return False
    return any(depth == 1 or _is_tree(path, depth - 1) for path in found)


_WRITTEN: Final = re.compile(r"/(?:\d+|ir)(?:\.bin|\.src|\.lock|_access_time\.txt)(?: \(deleted\))?\Z|cache_size\.txt")


def writes(path: str) -> bool:
    """Return whether the runtime has such a file open while it writes; see `Discovery.writes`."""
    return _WRITTEN.search(path) is not None
