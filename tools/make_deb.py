"""Build the package for Debian and Ubuntu: one for all releases, which needs no network when it is installed.

Usage: ``python tools/make_deb.py WHEEL [--output dist] [--wheels build/wheels] [--version V]``

From the same wheels the same package is made, byte for byte.  Needs dpkg-deb; `tools/tree.py` says what is in it.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from datetime import UTC, datetime
from email.utils import format_datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

import source_date
import tree as packed

if TYPE_CHECKING:
    from collections.abc import Sequence

MAINTAINER: Final = os.environ.get("DEBEMAIL") or "The developers of xpucached <xpucached@invalid.invalid>"

CONTROL: Final = """\
Package: xpucached
Version: {version}
Architecture: amd64
Maintainer: {maintainer}
Installed-Size: {size}
Depends: {pythons}, python3, libc6 (>= 2.28), libgcc-s1, init-system-helpers (>= 1.54), systemd (>= 249), polkitd
Suggests: intel-opencl-icd, libze1
Section: admin
Priority: optional
Description: look after the SYCL kernel caches of hosts with Intel GPUs
 Programs for Intel GPUs compile their kernels when they are used first, which
 takes seconds to minutes, and again after each update of the driver. This
 service indexes their caches, warms registered models, compiles again for a
 new driver what was compiled for the old one, evicts what nobody needs, and
 tells what is wrong.
 .
 The package brings all Python libraries that it needs, in an environment of
 its own.
"""

# The linker's cache stands for every driver, whatever its library is called; the folders are for drivers without one.
# Paths of triggers are compared as text, so both names of a merged folder stand here.
TRIGGERS: Final = """\
interest-noawait ldconfig
interest-noawait /etc/OpenCL/vendors
interest-noawait /usr/lib/x86_64-linux-gnu/intel-opencl
interest-noawait /lib/x86_64-linux-gnu/intel-opencl
interest-noawait /usr/lib/firmware/xe
interest-noawait /lib/firmware/xe
interest-noawait /usr/lib/firmware/i915
interest-noawait /lib/firmware/i915
"""

POSTINST: Final = """\
#!/bin/sh
set -e

if [ "$1" = triggered ]; then
    # Only a word to the daemon, which looks for itself when all is at rest; nothing here may hold up a transaction.
    # One that was stopped stays so: its socket would start it.
    if [ -d /run/systemd/system ] && systemctl is-active --quiet xpucached.service; then
        timeout 5 xpucachectl --system driver-changed --no-wait </dev/null >/dev/null 2>&1 || true
    fi
    exit 0
fi

case "$1" in
configure|abort-upgrade|abort-deconfigure|abort-remove)
    systemd-sysusers {sysusers} || true
    systemd-tmpfiles --create {tmpfiles} || true
    journalctl --update-catalog || true
    for python in /{home}/python*/bin/python; do
        [ -x "$python" ] || continue
        version=$(basename "$(readlink "$python")")
        # Of the great bundled packages only what this program loads.
        "$python" -I -m compileall -q -j 0 -x '/(pygments|testing|orm|dialects/(mssql|mysql|oracle|postgresql))/' \\
            /{home}/common "/{home}/$version/lib" || true
    done
    # Installed is not wanted: who wants it says so with `systemctl enable --now xpucached`, and is remembered.
    for unit in {units}; do
        if deb-systemd-helper debian-installed "$unit"; then
            deb-systemd-helper unmask "$unit" >/dev/null || true
            if deb-systemd-helper --quiet was-enabled "$unit"; then
                deb-systemd-helper enable "$unit" >/dev/null || true
            fi
        fi
        deb-systemd-helper update-state "$unit" >/dev/null || true
    done
    if [ -d /run/systemd/system ]; then
        # One that died a moment ago, or reads its configuration again, runs, too.
        state=$(systemctl is-active xpucached.service || true)
        systemctl --system daemon-reload >/dev/null || true
        if [ -n "$2" ]; then
            # A socket cannot be started again beside its running service.
            # A worker is a user's program: he can have systemd grant it any time to end.
            timeout 60 systemctl stop xpucached.service {patterns} || systemctl kill -s KILL {patterns} || true
            systemctl try-restart {others} || true
            case "$state" in active|activating|reloading)
                deb-systemd-invoke start xpucached.service >/dev/null || true
                ;;
            esac
        fi
    fi
    ;;
esac
exit 0
"""

PRERM: Final = """\
#!/bin/sh
set -e

if [ -d /run/systemd/system ] && [ "$1" = remove ]; then
    timeout 60 systemctl stop {patterns} >/dev/null 2>&1 || systemctl kill -s KILL {patterns} >/dev/null 2>&1 || true
    deb-systemd-invoke stop {units} >/dev/null || true
fi
if [ -d /{home} ]; then
    find /{home} -name __pycache__ -type d -prune -exec rm -rf {{}} +
fi
exit 0
"""

POSTRM: Final = """\
#!/bin/sh
set -e

if [ "$1" = remove ] && [ -d /run/systemd/system ]; then
    systemctl --system daemon-reload >/dev/null || true
fi
if [ "$1" = remove ]; then
    journalctl --update-catalog >/dev/null || true
fi
if [ "$1" = purge ]; then
    if command -v deb-systemd-helper >/dev/null; then
        deb-systemd-helper purge {units} >/dev/null || true
    fi
    # What systemd and the daemon made.  The account stays, so that its number is nobody else's; homes are not touched.
    # Users own some of it: what one has mounted there is left alone, and keeps nobody from purging the rest, even if it
    # never answers.
    for place in /etc/xpucached /var/lib/xpucached-worker/* /var/lib/xpucached-worker /var/lib/xpucached \
        /var/cache/xpucached /var/cache/xpucached-bundles /run/xpucached /run/xpucached-* /run/motd.d/60-xpucached; do
        timeout -s KILL 60 rm -rf --one-file-system "$place" || true
    done
fi
exit 0
"""

# Compiled parts are packed as their authors made them; the environments' interpreters lie elsewhere; workers and those
# who wait are instances, which deb-systemd-invoke does not know.
OVERRIDES: Final = """\
xpucached: unstripped-binary-or-object *
xpucached: absolute-symlink-in-top-level-folder *
xpucached: maintainer-script-calls-systemctl *
"""


def build(wheel: Path, wheels: Path, output: Path, version: str, packing: Sequence[str] = ("-Zxz",)) -> Path:
    """Build the package; gives its file.  Raises `packed.Failure`."""
    tool = shutil.which("dpkg-deb")
    if tool is None:
        raise packed.Failure("dpkg-deb is missing: apt-get install dpkg")
    packed.fetch(wheels)
    output.mkdir(parents=True, exist_ok=True)
    made = output / f"xpucached_{version}_amd64.deb"
    with tempfile.TemporaryDirectory() as name:
        tree = Path(name) / "tree"
        tree.mkdir()
        parts = packed.make(wheel, wheels, tree, zsh="vendor-completions")
        _documents(tree, version, parts)
        _control(tree, version)
        packed.settle(tree)
        for script in ("postinst", "prerm", "postrm"):
            (tree / "DEBIAN" / script).chmod(0o755)
        done = subprocess.run(
            [tool, "--root-owner-group", *packing, "--build", tree, made],
            env={**os.environ, "SOURCE_DATE_EPOCH": str(source_date.seconds()), "LC_ALL": "C"},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise packed.Failure(f"dpkg-deb: {done.stderr.strip()}")
    return made


def _documents(tree: Path, version: str, parts: Sequence[packed.Part]) -> None:
    docs = tree / "usr/share/doc/xpucached"
    when = format_datetime(datetime.fromtimestamp(source_date.seconds(), UTC))
    log = f"xpucached ({version}) unstable; urgency=medium\n\n  * See NEWS.md.gz.\n\n -- {MAINTAINER}  {when}\n"
    for name, text in (("changelog.gz", log), ("NEWS.md.gz", (packed.ROOT / "CHANGELOG.md").read_text("utf-8"))):
        (docs / name).write_bytes(gzip.compress(text.encode("utf-8"), mtime=0))
    lines = [
        "Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/",
        "Upstream-Name: xpucached",
        "",
        "Files: *",
        f"Copyright: {datetime.fromtimestamp(source_date.seconds(), UTC).year} the developers of xpucached",
        "License: Apache-2.0",
        " On Debian systems the whole text is in /usr/share/common-licenses/Apache-2.0.",
        "Comment: The package brings these libraries, each with its licence below",
        f" /{packed.HOME}, in the folder that ends with .dist-info:",
        *(f"  {part.name} {part.version}: {part.license}" for part in parts),
    ]
    (docs / "copyright").write_text("\n".join(lines) + "\n", encoding="utf-8")
    overrides = tree / "usr/share/lintian/overrides/xpucached"
    overrides.parent.mkdir(parents=True)
    overrides.write_text(OVERRIDES, encoding="utf-8")


def _control(tree: Path, version: str) -> None:
    units, templates = " ".join(packed.startable(tree)), packed.templates(tree)
    files = [path for path in packed.walk(tree) if path.is_file() and not path.is_symlink()]
    sums = [
        f"{hashlib.md5(path.read_bytes(), usedforsecurity=False).hexdigest()}  {path.relative_to(tree)}"
        for path in files
        if not path.is_relative_to(tree / "etc")
    ]
    words = {
        "home": packed.HOME,
        "units": units,
        "patterns": " ".join(f"'{one.replace('@.', '@*.')}'" for one in templates),
        "others": " ".join(unit for unit in units.split() if unit != "xpucached.service"),
        "sysusers": _names(tree / "usr/lib/sysusers.d"),
        "tmpfiles": _names(tree / "usr/lib/tmpfiles.d"),
    }
    size = sum((path.stat().st_size + 1023) // 1024 for path in files)
    parts = {
        "control": control(version, size),
        "triggers": TRIGGERS,
        "conffiles": "".join(f"/{path.relative_to(tree)}\n" for path in files if path.is_relative_to(tree / "etc")),
        "md5sums": "\n".join(sums) + "\n",
        "postinst": POSTINST.format(**words),
        "prerm": PRERM.format(**words),
        "postrm": POSTRM.format(**words),
    }
    place = tree / "DEBIAN"
    place.mkdir()
    for name, text in parts.items():
        # Where there is nothing to be made, the line goes.
        kept = [line for line in text.splitlines() if not re.fullmatch(r" +systemd-\w+(?: --create)?  \|\| true", line)]
        (place / name).write_text("\n".join(kept) + "\n", encoding="utf-8")


def control(version: str, size: int) -> str:
    """Write the control file of a version; ``size`` is in KiB."""
    pythons = " | ".join(f"python{one}" for one in packed.PYTHONS)
    return CONTROL.format(version=version, maintainer=MAINTAINER, size=size, pythons=pythons)


def _names(folder: Path) -> str:
    return " ".join(path.name for path in sorted(folder.glob("*.conf")))


def main() -> int:
    """Build what the command line says."""
    parser = argparse.ArgumentParser(description="Build the package for Debian and Ubuntu.")
    parser.add_argument("wheel", type=Path, metavar="WHEEL", help="xpucached's own, as make dist builds it")
    parser.add_argument("--output", type=Path, default=Path("dist"), metavar="DIR")
    parser.add_argument("--wheels", type=Path, default=Path("build/wheels"), metavar="DIR", help="kept for next time")
    parser.add_argument("--version", default="", metavar="V", help="the package's (default: the wheel's)")
    asked = parser.parse_args()
    version = asked.version or packed.Part.of(asked.wheel).version
    try:
        made = build(asked.wheel, asked.wheels, asked.output, version)
    except packed.Failure as problem:
        print(f"make_deb: {problem}", file=sys.stderr)
        return 1
    print(f"{made}: {made.stat().st_size / 1e6:.1f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
