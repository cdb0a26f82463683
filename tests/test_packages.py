"""What packages ask of a release is there in each that docs/packaging.md names."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Final

import debian
import make_deb
import make_rpm
import pytest
import tree as packed

from tests.conftest import DEBIAN
from tests.test_docs import page, rows, section
from xpucached import systemd

HEAD: Final = ("python3", "systemd", "libc6", "init-system-helpers", "polkitd", "passwd")
RELEASES: Final = {
    name: dict(zip(HEAD, (cell.split()[0] for cell in cells), strict=False))
    for name, *cells, _ in (row for row in rows(section(page("docs/packaging.md"), "One package for all releases")))
}
SUITES: Final = {"Debian 12": "bookworm", "Debian 13": "trixie"}


def number(version: str) -> tuple[int, ...]:
    """Return a version without epoch and revision."""
    return tuple(int(part) for part in re.findall(r"\d+", re.sub(r"^\d+:|[-+~].*", "", version)))


def relations() -> list[list[tuple[str, str]]]:
    """Return what the control file asks for: alternatives of a package and the least version of it."""
    line = next(one for one in make_deb.control("1.0", 1).splitlines() if one.startswith("Depends: "))
    groups = line.removeprefix("Depends: ").split(", ")
    found = [
        [re.fullmatch(r"([a-z0-9.-]+)(?: \(>= ([^)]+)\))?", one) for one in group.split(" | ")] for group in groups
    ]
    return [[(one[1], one[2] or "") for one in group if one is not None] for group in found]


def lacking(release: dict[str, str]) -> list[str]:
    """Name what a release does not have."""
    there = {**release, f"python{release['python3']}": release["python3"], "libgcc-s1": "12"}
    return [
        " | ".join(name for name, _ in group)
        for group in relations()
        if not any(name in there and number(there[name]) >= number(least) for name, least in group)
    ]


@pytest.mark.parametrize("release", RELEASES)
def test_the_package_can_be_installed_on_each_release(release: str) -> None:
    assert lacking(RELEASES[release]) == []
    assert RELEASES[release]["python3"] in packed.PYTHONS


def test_it_brings_what_bundles_need_with_each_python() -> None:
    found = {version: {re.split("[<>=]", one)[0] for one in packed.needs(version)} for version in packed.PYTHONS}

    assert [version for version, names in found.items() if {"cryptography", "rich"} <= names] == [*packed.PYTHONS]
    assert [version for version, names in found.items() if "backports.zstd" in names] == ["3.11", "3.12", "3.13"]


def test_all_that_is_asked_for_is_looked_at() -> None:
    nothing = dict.fromkeys(HEAD, "0")

    assert set(RELEASES) == {"Debian 12", "Debian 13", "Ubuntu 22.04", "Ubuntu 24.04", "Ubuntu 26.04"}
    assert lacking({**RELEASES["Debian 12"], "systemd": "248.3-1ubuntu8"}) == ["systemd"]
    assert lacking(nothing) == [
        "python3.11 | python3.12 | python3.13 | python3.14",
        "libc6",
        "init-system-helpers",
        "systemd",
    ]
    assert ("polkitd", "") in [one for group in relations() for one in group]


@pytest.mark.parametrize("release", SUITES)
def test_the_versions_are_those_of_the_release_itself(release: str) -> None:
    root = debian.root(DEBIAN, SUITES[release])
    if not debian.is_finished(root):
        pytest.skip(f"there is no {release}; run: {sys.executable} tools/debian.py {DEBIAN} --suite {SUITES[release]}")
    command = ["dpkg-query", f"--admindir={root}/var/lib/dpkg", "-W", "-f", "${Package} ${Version}\n", *HEAD]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    found = {name: number(version) for name, version in (line.split() for line in listed)}

    for name, version in RELEASES[release].items():
        assert found[name][: len(number(version))] == number(version), name


def test_an_rpm_asks_for_the_same() -> None:
    spec = make_rpm.SPEC

    assert "Requires: systemd >= 249\n" in spec
    assert "Requires: polkit\n" in spec
    assert {least for group in relations() for name, least in group if name == "systemd"} == {"249"}


def test_the_journal_s_catalog_is_one_that_systemd_reads(tmp_path: Path) -> None:
    update = "journalctl --update-catalog"
    assert all(script.count(update) == 1 for script in (make_deb.POSTINST, make_deb.POSTRM))
    assert make_rpm.SPEC.count(update) == 2
    journalctl = shutil.which("journalctl")
    if journalctl is None:
        pytest.skip("systemd's journalctl is not here")
    (tmp_path / "var/lib/systemd/catalog").mkdir(parents=True)
    name = "catalog/xpucached.catalog"
    packed._settle_one(tmp_path, tmp_path, name, (packed.ROOT / "systemd" / name).read_bytes(), "")
    told = ["", ""]
    for index, word in enumerate(("--update-catalog", "--list-catalog")):
        run = subprocess.run([journalctl, f"--root={tmp_path}", word], capture_output=True, text=True, check=True)
        assert run.stderr == ""
        told[index] = run.stdout
    listed = dict(line.split(" ", 1) for line in told[1].splitlines())
    assert set(listed) == set(systemd.MESSAGES.values())
    assert all(text.startswith("xpucached: ") for text in listed.values())


@pytest.mark.parametrize("name", ["../evil", "/evil", "inside/../../evil"])
def test_a_wheel_puts_nothing_elsewhere(tmp_path: Path, name: str) -> None:
    with zipfile.ZipFile(tmp_path / "x.whl", "w") as archive:
        archive.writestr("inside/good.py", "")
        archive.writestr(name, "")

    with pytest.raises(packed.Failure, match="lies outside"):
        packed._unpack(tmp_path / "x.whl", tmp_path / "root" / "place")
    left = [path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file()]
    assert sorted(left) == ["root/place/inside/good.py", "x.whl"]


# All that we have; only who migrates a catalog of an earlier version loads more.
LOADED: Final = """
import importlib, pkgutil, sys, xpucached
for module in pkgutil.walk_packages(xpucached.__path__, "xpucached."):
    if not module.name.endswith("__main__") and not module.name.startswith("xpucached.libexec."):
        importlib.import_module(module.name)
print(*(one.__file__ for one in list(sys.modules.values()) if getattr(one, "__file__", None)), sep="\\n")
"""


def test_what_is_loaded_is_compiled_when_it_is_installed() -> None:
    left: set[str] = set()
    for script in (make_deb.POSTINST, make_rpm.SPEC):
        left.update(re.findall(r"compileall -q -j 0 -x '(\S+)'", script))
    (pattern,) = left
    done = subprocess.run([sys.executable, "-c", LOADED], capture_output=True, text=True, check=True)
    loaded = done.stdout.splitlines()

    assert any("/sqlalchemy/dialects/sqlite/" in one for one in loaded)
    assert [one for one in loaded if re.search(pattern, one)] == []
