"""Observe: where on this machine the host room looks.  Holds paths, touches nothing."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class HostRoots:
    """The roots of everything that is looked at; another set of them is another (pretend) machine."""

    sysfs: Path = Path("/sys")
    proc: Path = Path("/proc")
    etc: Path = Path("/etc")
    dev: Path = Path("/dev")
    #: where libraries lie that the loader's own cache does not list
    libraries: tuple[Path, ...] = (
        Path("/usr/lib/x86_64-linux-gnu"),
        Path("/usr/lib64"),
        Path("/usr/lib"),
        Path("/lib64"),
        Path("/lib"),
    )
    caches: Path = Path("/var/cache")  #: below it package managers leave what they downloaded
    run: Path = Path("/run")


HERE = HostRoots()
"""This machine."""
