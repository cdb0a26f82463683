"""The SYCL persistent device code cache (``libsycl_cache``) of Intel's DPC++ runtime: the plug.

Read from intel/llvm's sources and checked on runtimes 2024.2 to 2026.2; formats and faults are in ``docs/kinds.md``.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from xpucached.domain.host import Process
from xpucached.domain.names import EntryKey, KindName
from xpucached.kinds import fs
from xpucached.kinds.sycl import doctor, recipes, remover, scanner, trash_files
from xpucached.kinds.sycl.entry_format import IR, IR_FILE, IR_KEY, NUMBER, OURS, RTC, SLOT_FILE

NAME: Final = KindName("sycl")

OFF: Final[Mapping[str, str]] = {"SYCL_CACHE_PERSISTENT": "0"}
# From 2025.1 on a mask: 1 is what is compiled ahead and at first use, 4 is what is compiled from source at run time.
# Before that whatever is set means the first, and the second is not cached.
TRACING: Final[Mapping[str, str]] = {"SYCL_CACHE_TRACE": "5"}

scan = scanner.scan
parts = scanner.parts
remove = remover.remove
sweep = remover.sweep
mend = remover.mend
trash = trash_files.trash
trash_size = trash_files.trash_size
restore = trash_files.restore
discard = trash_files.discard
faults = doctor.faults
clear = doctor.clear
recipe = recipes.recipe
unusable = recipes.unusable
publish = recipes.publish

_STANDARD: Final = (
    *("/opt/intel/oneapi/compiler/latest/lib", "/usr/local/lib"),
    *("/usr/lib/x86_64-linux-gnu", "/usr/lib64"),
)
"""Where the runtime lies on hosts that have it installed for everybody."""

_FOLDERS: Final = 100
"""So many folders of a process are searched for the configuration file."""

_CONFIG_LIMIT: Final = 64 << 10
_CONFIG_VALUE: Final = 164
"""The runtime cuts a directory from its configuration file here."""


def enable(root: Path) -> Mapping[str, str]:
    """Give the variables that switch the cache on, into this store, with the runtime's own eviction off."""
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
    for path in candidates:
        if not path.is_absolute():
            continue
        # It may be a link, which the runtime follows.
        real = Path(os.path.realpath(path))
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
    """Tell where a process keeps its store: by the runtime's own rules, the environment before the file."""
    variables = process.variables
    configured, file = _configuration(process)
    root: str | None = None
    via = process.name if process.pid == 0 else f"process {process.pid} ({process.name})"
    if "SYCL_CACHE_DIR" in variables:
        # An empty value switches the cache off; `~` is not expanded.
        root = variables["SYCL_CACHE_DIR"]
    elif "SYCL_CACHE_DIR" in configured:
        root, via = configured["SYCL_CACHE_DIR"][:_CONFIG_VALUE], file
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
    """Tell whether the cache is on in a process, by its environment or by the runtime's configuration file."""
    configured, _ = _configuration(process)
    return process.variables.get("SYCL_CACHE_PERSISTENT", configured.get("SYCL_CACHE_PERSISTENT")) == "1"


def key(path: str) -> EntryKey | None:
    """Tell to which entry a file belongs; see `Kind.key`."""
    leaf, _, name = path.rpartition("/")
    match = SLOT_FILE.match(name) or IR_FILE.match(name)
    # What we keep aside lies in directories of ours, and is no entry there.
    return EntryKey(f"{leaf}/{match[1]}") if match is not None and leaf and not leaf.startswith(OURS) else None


# "binary" without "device" is a program that was compiled from source, and kept by the device's name.
_HIT: Final = ("using cached device binary: ", "using cached device code IR: ", "using cached binary: ")
_STORED: Final = ("binary has been cached: ", "storing device code IR: ")
_LEVELS: Final = 6
"""Names of a key, at most; a trace may say anything."""

_MARK: Final = re.compile(r"(?:Code caching|Persistent Cache)\]?: ")


def _keys(root: str, text: str) -> list[EntryKey]:
    """Turn the paths of a trace line into keys; the runtime ends each of several by a semicolon."""
    keys: list[EntryKey] = []
    for part in text.strip().split(";" + root):
        path = part.strip().rstrip(";").strip()
        path = path.removeprefix(root).strip("/").removesuffix(".bin")
        pieces = path.split("/")
        if pieces[0] == RTC and len(pieces) == 2 and IR_KEY.match(pieces[1]):  # noqa: PLR2004 - the IR's directory
            pieces.append(IR)
        known = (NUMBER.match(piece) or piece in (RTC, IR) or IR_KEY.match(piece) for piece in pieces)
        if len(pieces) <= _LEVELS and all(known):
            keys.append(EntryKey("/".join(pieces)))
    return keys


def named(root: Path, trace: Iterable[str]) -> tuple[frozenset[EntryKey], frozenset[EntryKey]]:
    """Read ``SYCL_CACHE_TRACE`` lines; see `Kind.named`.

    Old runtimes also claim a hit after a failed read, and all of them claim a store after a failed write: what a trace
    names must be looked for on disk before it is believed.
    """
    prefix = os.fspath(root)
    created: set[EntryKey] = set()
    used: set[EntryKey] = set()
    for line in trace:
        mark = _MARK.search(line)
        if mark is None:
            continue
        event = line[mark.end() :]
        for texts, keys in ((_HIT, used), (_STORED, created)):
            for text in texts:
                at = event.find(text)
                if at >= 0 and prefix in event:
                    keys.update(_keys(prefix, event[at + len(text) :]))
    return frozenset(created), frozenset(used - created)
