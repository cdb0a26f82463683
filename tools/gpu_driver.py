"""Unpack Intel's GPU driver into a folder, for tests without a GPU; nothing is installed.

Usage: ``python3 tools/gpu_driver.py DIRECTORY [--older] [--optional]``

It takes the newest compute-runtime, its compiler and the loaders from Debian's unstable suite, with the C library that
they need, and leaves them in DIRECTORY as their packages have them; the driver's own simulation then stands for a GPU
(``docs/operations.md``, "Other drivers, other GPUs").  With ``--older`` it is the driver of Debian 12 (22.43).  It
needs apt, dpkg and a Debian mirror among this machine's sources.  With ``--optional`` it is no failure if that cannot
be had: the reason is printed, and tests that need the driver are skipped with it.  Standard library only.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

MARKER: Final = "xpucached-gpu-driver.json"
REASON: Final = "xpucached-gpu-driver.missing"

PACKAGES: Final = (
    "intel-opencl-icd",
    "libc6",
    "libze1",
    "ocl-icd-libopencl1",
)
# Unstable may lack a package for a day; testing has an older driver, which does as well.
SUITES: Final = ("sid", "testing")
OLDER: Final = "bookworm"
NEWER: Final = ("libze-intel-gpu1",)
"""What the older suite's `intel-opencl-icd` holds itself."""
KEYRINGS: Final = ("debian-archive-keyring.gpg", "debian-archive-keyring.pgp")
WANTED: Final = ("libze_intel_gpu.so.1", "libigdrcl.so", "libze_loader.so.1", "libOpenCL.so.1", "ld-linux-x86-64.so.2")

_MIRROR: Final = re.compile(r"https?://[^\s\]]+?/debian/?(?=\s|$)")


class Failure(Exception):
    """Something that a person must put right; the text says what."""


def mirrors(etc: Path = Path("/etc/apt")) -> Iterator[str]:
    """Yield the Debian mirrors that this machine uses already."""
    for path in (etc / "sources.list", *sorted((etc / "sources.list.d").glob("*"))):
        try:
            text = path.read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue
        lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
        yield from _MIRROR.findall("\n".join(lines))


def fetch(suite: str, mirror: str, target: Path) -> list[str]:
    """Download the packages and what they need, unpack them into ``target``, and give their names with versions."""
    keyring = next((path for name in KEYRINGS if (path := Path("/usr/share/keyrings", name)).exists()), None)
    if keyring is None:
        raise Failure("Debian's keys are missing: apt-get install debian-archive-keyring")
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        for folder in ("lists/partial", "cache/archives/partial", "state"):
            (work / folder).mkdir(parents=True)
        (work / "sources.list").write_text(f"deb [signed-by={keyring}] {mirror} {suite} main\n", encoding="utf-8")
        (work / "status").touch()
        options = {
            "Dir::Etc::sourcelist": work / "sources.list",
            "Dir::Etc::sourceparts": "/dev/null",
            "Dir::State": work / "state",
            "Dir::State::Lists": work / "lists",
            "Dir::State::status": work / "status",
            "Dir::Cache": work / "cache",
            "Debug::NoLocking": "1",
            "APT::Sandbox::User": "",
            "APT::Architecture": "amd64",
            "Acquire::Languages": "none",
        }
        apt = ["apt-get", *(f"-o{name}={value}" for name, value in options.items()), "-q", "-y"]
        _run([*apt, "update"])
        packages = PACKAGES if suite == OLDER else (*PACKAGES, *NEWER)
        _run([*apt, "install", "--download-only", "--no-install-recommends", *packages])
        archives = sorted((work / "cache/archives").glob("*.deb"))
        for archive in archives:
            _run(["dpkg-deb", "-x", str(archive), str(target)])
    # The older suite has its C library outside of `usr`.
    libraries = target / "lib/x86_64-linux-gnu"
    for library in libraries.iterdir() if not libraries.is_symlink() and libraries.is_dir() else ():
        shutil.move(library, target / "usr/lib/x86_64-linux-gnu" / library.name)
    for wanted in WANTED:
        if not any(target.rglob(wanted)):
            raise Failure(f"the packages of {suite} hold no {wanted}")
    # Only the libraries are needed: manuals, licences and character sets are half of the files.
    for needless in ("share", "lib/x86_64-linux-gnu/gconv", "bin", "sbin"):
        shutil.rmtree(target / "usr" / needless, ignore_errors=True)
    return [archive.name.removesuffix(".deb") for archive in archives]


def install(place: Path, suites: Sequence[str]) -> None:
    """Make the folder, from the first of these suites that has all of it, and mark it as finished."""
    for tool in ("apt-get", "dpkg-deb"):
        if shutil.which(tool) is None:
            raise Failure(f"this machine has no {tool}: the GPU driver is taken from Debian's packages")
    if os.uname().machine != "x86_64":
        raise Failure(f"Intel's GPU driver is made for x86_64, this machine is {os.uname().machine}")
    mirror = next(mirrors(), None)
    if mirror is None:
        raise Failure("no Debian mirror is among this machine's package sources")
    reasons: list[str] = []
    for suite in suites:
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True)
        try:
            packages = fetch(suite, mirror, place)
        except Failure as problem:
            reasons.append(f"{suite}: {problem}")
            continue
        (place / MARKER).write_text(json.dumps({"suite": suite, "packages": packages}, indent=1) + "\n", "utf-8")
        return
    raise Failure("\n".join(reasons))


def _run(command: list[str]) -> None:
    done = subprocess.run(
        command,
        env={**os.environ, "LC_ALL": "C", "DEBIAN_FRONTEND": "noninteractive"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode:
        raise Failure(f"{command[0]} ended with status {done.returncode}: {done.stdout.strip()[-2000:]}")


def main() -> int:
    """Unpack the driver unless that was done; 0 when it is there, or with ``--optional`` when the reason is."""
    parser = argparse.ArgumentParser(description="Unpack Intel's GPU driver into a folder (some 300 MB).")
    parser.add_argument("directory", type=Path, metavar="DIRECTORY")
    parser.add_argument("--older", action="store_true", help="the driver of Debian 12, which is of 2022")
    parser.add_argument("--optional", action="store_true", help="leave the reason there if it cannot be had, and go on")
    asked = parser.parse_args()
    place: Path = asked.directory
    if (place / MARKER).is_file():
        print(f"the GPU driver is in {place}")
        return 0
    began = time.monotonic()
    print("GPU driver: unpacking …", flush=True)
    try:
        install(place, (OLDER,) if asked.older else SUITES)
    except (Failure, OSError) as problem:
        print(f"GPU driver: {problem}", file=sys.stderr)
        if not asked.optional:
            return 1
        place.mkdir(parents=True, exist_ok=True)
        (place / REASON).write_text(f"{problem}\n", encoding="utf-8")
        return 0
    print(f"GPU driver: done in {time.monotonic() - began:.0f} s, in {place}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
