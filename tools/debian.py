"""Make the root of a small Debian with systemd in a folder, for tests that boot it; nothing is installed here.

Usage: ``python3 tools/debian.py DIRECTORY [--suite SUITE] [--optional]``

`tests/support/hosts.py` boots it in a container, below an overlay, so it is never changed.  It lies in a folder of
DIRECTORY whose name tells the suite and what is in it; one that is finished is left alone.  It needs root,
mmdebstrap and a Debian mirror.  With ``--optional`` it is no failure if that cannot be had: the reason is printed, and
the tests are skipped with it.  Standard library only.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

MARKER: Final = ".xpucached-complete"
REASON: Final = "xpucached-debian.missing"
SUITE: Final = "bookworm"

_RECIPE: Final = 1
"""Raise it when roots are made in another way."""

PACKAGES: Final = (
    "dbus",
    "dbus-user-session",
    "libnss-systemd",
    "libpam-systemd",
    "libpython3-stdlib",
    "libpython3.11",
    "polkitd",
    "procps",
    "python3",
    "python3-venv",
    "systemd",
    "systemd-sysv",
    "udev",
)

# What wanders about in the time that a test takes, and what a container has no use for.
_MASKED: Final = (
    "apt-daily-upgrade.timer",
    "apt-daily.timer",
    "console-getty.service",
    "dpkg-db-backup.timer",
    "e2scrub_all.timer",
    "e2scrub_reap.service",
    "fstrim.timer",
    "getty.target",
    "ldconfig.service",
    "proc-sys-fs-binfmt_misc.automount",
    "systemd-binfmt.service",
    "systemd-hwdb-update.service",
    "systemd-networkd-wait-online.service",
    "systemd-timesyncd.service",
)


class Failure(Exception):
    """Something that a person must put right; the text says what."""


def packages(suite: str) -> tuple[str, ...]:
    """Return the packages that are named for a suite; what they need comes with them."""
    return PACKAGES if suite == "bookworm" else tuple(name for name in PACKAGES if name != "libpython3.11")


def root(place: Path, suite: str = SUITE) -> Path:
    """Return where the root of a suite is, or would be."""
    text = "\n".join((str(_RECIPE), suite, *packages(suite), *_MASKED))
    return place / f"{suite}-{hashlib.blake2b(text.encode(), digest_size=6).hexdigest()}"


def is_finished(folder: Path) -> bool:
    """Return whether the root is whole."""
    return (folder / MARKER).is_file()


def make(place: Path, suite: str) -> Path:
    """Make the root, unless it is there."""
    folder = root(place, suite)
    place.mkdir(parents=True, exist_ok=True)
    with (place / f".{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if is_finished(folder):
            return folder
        if os.geteuid() != 0:
            raise Failure("only root can make a root directory with other users' files")
        if shutil.which("mmdebstrap") is None:
            raise Failure("mmdebstrap is missing: apt-get install --no-install-recommends mmdebstrap")
        if folder.exists():
            shutil.rmtree(folder)
        part = folder.with_name(f"{folder.name}.part")
        if part.exists():
            shutil.rmtree(part)
        command = ["mmdebstrap", "--mode=root", "--variant=minbase", "--format=directory", "--quiet"]
        # Old snapshots of a suite say that they have expired.
        command += ['--aptopt=Acquire::Check-Valid-Until "false"', f"--include={','.join(packages(suite))}"]
        done = subprocess.run(
            [*command, suite, str(part)],
            env={**os.environ, "LC_ALL": "C", "DEBIAN_FRONTEND": "noninteractive"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        if done.returncode:
            raise Failure(f"mmdebstrap ended with status {done.returncode}: {done.stdout.strip()[-2000:]}")
        _settle(part)
        (part / MARKER).touch()
        part.rename(folder)
    return folder


def _settle(folder: Path) -> None:
    """Leave a root that is nobody's yet, keeps its journal, and has nothing that wanders."""
    (folder / "etc/machine-id").write_text("")
    (folder / "etc/hostname").write_text("xpucached-test\n")
    (folder / "etc/resolv.conf").unlink(missing_ok=True)
    (folder / "var/log/journal").mkdir(parents=True, exist_ok=True)
    journal = folder / "etc/systemd/journald.conf.d/xpucached-test.conf"
    journal.parent.mkdir(parents=True, exist_ok=True)
    journal.write_text("[Journal]\nStorage=persistent\nRateLimitIntervalSec=0\nSyncIntervalSec=1s\n")
    units = folder / "etc/systemd/system"
    for name, target in (
        *((name, "/dev/null") for name in _MASKED),
        ("default.target", "/lib/systemd/system/multi-user.target"),
    ):
        (units / name).unlink(missing_ok=True)
        (units / name).symlink_to(target)
    for cache in (folder / "var/cache/apt/archives", folder / "var/lib/apt/lists"):
        shutil.rmtree(cache, ignore_errors=True)
        (cache / "partial").mkdir(parents=True)


def main() -> int:
    """Make the root unless it is there; 0 when it is, or with ``--optional`` when the reason is."""
    parser = argparse.ArgumentParser(description="Make the root of a small Debian with systemd (some 350 MB).")
    parser.add_argument("directory", type=Path, metavar="DIRECTORY")
    parser.add_argument("--suite", default=SUITE, help=f"Debian's suite ({SUITE})")
    parser.add_argument("--optional", action="store_true", help="leave the reason there if it cannot be had, and go on")
    asked = parser.parse_args()
    place: Path = asked.directory
    began = time.monotonic()
    try:
        made = make(place, asked.suite)
    except (Failure, OSError) as problem:
        print(f"Debian: {problem}", file=sys.stderr)
        if not asked.optional:
            return 1
        place.mkdir(parents=True, exist_ok=True)
        (place / REASON).write_text(f"{problem}\n", encoding="utf-8")
        return 0
    print(f"Debian: in {made}, after {time.monotonic() - began:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
