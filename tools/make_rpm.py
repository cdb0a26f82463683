"""Build a package with the same content for distributions that use rpm.

Usage: ``python tools/make_rpm.py WHEEL [--output dist] [--wheels build/wheels] [--version V]``

`tools/tree.py` says what is in it.  Needs rpmbuild (Debian: ``apt-get install rpm``).
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

import source_date
import tree as packed

# A file's name as the beginning of a trigger would never match one that comes in, so folders stand there, and the names
# of drivers and compilers are looked for among what rpm says.
SPEC: Final = r"""
Name: xpucached
Version: {version}
Release: 1
Summary: Looks after the SYCL kernel caches of hosts with Intel GPUs
License: Apache-2.0
BuildArch: x86_64
AutoReqProv: no
Requires: ({pythons})
Requires: systemd >= 249
Requires: polkit
Requires: grep coreutils findutils
%global __os_install_post %{{nil}}
%global debug_package %{{nil}}
%global _build_id_links none

%description
Programs for Intel GPUs compile their kernels when they are used first, which takes seconds to minutes, and again after
each update of the driver.  This service indexes their caches, warms registered models, compiles again for a new driver
what was compiled for the old one, evicts what nobody needs, and tells what is wrong.

%install
cp -a {tree}/. %{{buildroot}}/

%post
systemd-sysusers {sysusers} || :
systemd-tmpfiles --create {tmpfiles} || :
journalctl --update-catalog || :
# What is enabled by itself says the preset.
if [ $1 -eq 1 ] && [ -x /usr/lib/systemd/systemd-update-helper ]; then
    /usr/lib/systemd/systemd-update-helper install-system-units {units} || :
fi

%preun
if [ $1 -eq 0 ]; then
    [ ! -x /usr/lib/systemd/systemd-update-helper ] ||
        /usr/lib/systemd/systemd-update-helper remove-system-units {units} || :
    # A worker is a user's program: he can have systemd grant it any time to end.
    [ ! -d /run/systemd/system ] || timeout 60 systemctl stop {patterns} || systemctl kill -s KILL {patterns} || :
fi
find /{home} -name __pycache__ -type d -prune -exec rm -rf {{}} + || :

%postun
[ $1 -ge 1 ] || journalctl --update-catalog || :
if [ $1 -ge 1 ] && [ -x /usr/lib/systemd/systemd-update-helper ]; then
    /usr/lib/systemd/systemd-update-helper mark-restart-system-units {units} || :
fi

# Not in %post: in an upgrade the scripts of the old package come after that, and take what was compiled away.
%posttrans
for python in /{home}/python*/bin/python; do
    [ -x "$python" ] || continue
    "$python" -I -m compileall -q -j 0 -x '/(pygments|testing|orm|dialects/(mssql|mysql|oracle|postgresql))/' \
        /{home}/common "/{home}/$(basename "$(readlink "$python")")/lib" || :
done

%transfiletriggerin -- {folders}
{poke}

%transfiletriggerpostun -- {folders}
{poke}

%files
{files}
"""

FOLDERS: Final = "/usr/lib64 /etc/OpenCL/vendors /usr/lib/firmware"
NAMES: Final = (
    r"/lib(ze_intel_gpu|ze_loader|igdrcl|igc|igdfcl|iga|ocloc|intelocl|OpenCL|sycl|ur_)[^/]*\.so|/OpenCL/vendors/"
    r"|/firmware/(xe|i915)/"
)
POKE: Final = f"""\
# Only a word to the daemon, which looks for itself when all is at rest; nothing here may hold up a transaction.
# One that was stopped stays so: its socket would start it.
if grep -qE '{NAMES}' && [ -d /run/systemd/system ] && systemctl is-active --quiet xpucached.service; then
    timeout 5 xpucachectl --system driver-changed --no-wait </dev/null >/dev/null 2>&1 || :
fi
exit 0"""


def spec(tree: Path, version: str) -> str:
    """Write what rpmbuild is told, for a tree."""
    files = []
    for path in packed.walk(tree):
        name = f"/{path.relative_to(tree)}"
        own = name.startswith(
            (f"/{packed.HOME}", "/etc/xpucached", "/usr/share/cockpit/xpucached", "/usr/share/doc/xpucached")
        )
        if path.is_dir() and not path.is_symlink():
            files += [f'%dir "{name}"'] if own else []
        else:
            files.append(f'{"%config(noreplace) " if name.startswith("/etc/") else ""}"{name}"')
    return SPEC.format(
        version=version,
        pythons=" or ".join(f"/usr/bin/python{one}" for one in packed.PYTHONS),
        tree=tree,
        home=packed.HOME,
        units=" ".join(packed.startable(tree)),
        patterns=" ".join(f"'{one.replace('@.', '@*.')}'" for one in packed.templates(tree)),
        sysusers="xpucached.conf xpucached-watch.conf",
        tmpfiles="xpucached.conf",
        folders=FOLDERS,
        poke=POKE,
        files="\n".join(files),
    )


def build(wheel: Path, wheels: Path, output: Path, version: str, packing: str = "w7.xzdio") -> Path:
    """Build the package; gives its file.  Raises `packed.Failure`."""
    tool = shutil.which("rpmbuild")
    if tool is None:
        raise packed.Failure("rpmbuild is missing: apt-get install --no-install-recommends rpm")
    packed.fetch(wheels)
    output.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        tree = place / "tree"
        tree.mkdir()
        packed.make(wheel, wheels, tree, zsh="site-functions")
        (place / "xpucached.spec").write_text(spec(tree, version), encoding="utf-8")
        words = {
            "_topdir": place / "rpm",
            "_rpmdir": place / "made",
            "_buildhost": "localhost",
            "_binary_payload": packing,
        }
        words |= {"use_source_date_epoch_as_buildtime": 1, "clamp_mtime_to_source_date_epoch": 1}
        command = [tool, "-bb", "--target=x86_64", *(f"--define={key} {value}" for key, value in words.items())]
        done = subprocess.run(
            [*command, place / "xpucached.spec"],
            env={**os.environ, "SOURCE_DATE_EPOCH": str(source_date.seconds()), "LC_ALL": "C.UTF-8"},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise packed.Failure(f"rpmbuild: {done.stderr.strip()[-2000:]}")
        (made,) = (place / "made").rglob("*.rpm")
        return Path(shutil.copy(made, output / made.name))


def main() -> int:
    """Build what the command line says."""
    parser = argparse.ArgumentParser(description="Build the package for distributions that use rpm.")
    parser.add_argument("wheel", type=Path, metavar="WHEEL", help="xpucached's own, as make dist builds it")
    parser.add_argument("--output", type=Path, default=Path("dist"), metavar="DIR")
    parser.add_argument("--wheels", type=Path, default=Path("build/wheels"), metavar="DIR", help="kept for next time")
    parser.add_argument("--version", default="", metavar="V", help="the package's (default: the wheel's)")
    asked = parser.parse_args()
    version = asked.version or packed.Part.of(asked.wheel).version
    try:
        made = build(asked.wheel, asked.wheels, asked.output, version)
    except packed.Failure as problem:
        print(f"make_rpm: {problem}", file=sys.stderr)
        return 1
    print(f"{made}: {made.stat().st_size / 1e6:.1f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
