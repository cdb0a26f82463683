"""Packages of drivers that were downloaded: which are taken, and how they are unpacked, by the real tools."""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import subprocess
import tarfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from tests.support import driver_packages
from xpucached.domain.ahead import StagedDriver
from xpucached.host import package_tools, power, staged, tools
from xpucached.host.roots import HostRoots
from xpucached.processes import unpacking
from xpucached.processes.unpacking import NoRoomLeft, UnpackFailed, UnpackLimits, unpack

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

pytestmark = pytest.mark.flow

needs_dpkg = pytest.mark.skipif(shutil.which("dpkg-deb") is None, reason="dpkg-deb is not installed")
LIBRARIES: Final = "usr/lib/x86_64-linux-gnu"
MODIFIED: Final = 1_700_000_001
LIMITS: Final = UnpackLimits(reserve=0)


@pytest.fixture
def archives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return apt's download folder of a machine where version 2 of a driver is installed, and version 3 lies there."""
    folder = tmp_path / "cache/apt/archives"
    folder.mkdir(parents=True)
    monkeypatch.setattr(package_tools, "differs_from_lists", lambda _file: False)
    there = {"libigc2": "2.0", "intel-opencl-icd": "25.1", "libc6": "2.36"}
    monkeypatch.setattr(
        package_tools, "installed_debs", lambda names: {name: there[name] for name in names if name in there}
    )
    staged._remembered.clear()
    staged._listed.clear()
    return folder


def package(folder: Path, name: str, version: str, depends: str = "") -> Path:
    tree = folder.parent / f"tree-{name}-{version}"
    library = tree / LIBRARIES / f"{name}.so.1"
    library.parent.mkdir(parents=True)
    library.write_bytes(name.encode() * 1000)
    os.utime(library, (MODIFIED, MODIFIED))
    (library.parent / f"{name}.so").symlink_to(library.name)
    (tree / "usr/share/doc").mkdir(parents=True)
    (tree / "usr/share/doc/readme").write_text("not a library")
    made = driver_packages.deb(folder, tree, name, version, depends)
    made.chmod(0o644)
    return made


def found(archives: Path, *images: str) -> staged.Lying:
    return staged.find(["intel-opencl-icd 25.1"], images, HostRoots(caches=archives.parents[1]), owner=os.geteuid())


def names(lying: staged.Lying) -> list[tuple[str, str, str]]:
    (driver,) = lying.drivers
    return [(one.name, one.version, one.replaces) for one in driver.packages]


def unpacked(archive: Path, into: Path, limits: UnpackLimits = LIMITS) -> int:
    into.mkdir()
    return unpack(archive, into, limits, threading.Event())


@needs_dpkg
def test_what_would_take_the_place_of_the_installed_is_one_driver(archives: Path, tmp_path: Path) -> None:
    package(archives, "libigc2", "2.0")  # apt keeps what it has installed
    package(archives, "libigc2", "1.9")
    package(archives, "htop", "99")
    assert found(archives) == staged.Lying()

    package(archives, "libigc2", "2.1", "libc6 (>= 2.30)")
    compiler_only = found(archives)
    assert names(compiler_only) == [("libigc2", "2.1", "2.0")]
    before = staged.stamp((), HostRoots(caches=tmp_path / "cache"))

    package(archives, "intel-opencl-icd", "25.2", "libigc2 (>= 2.1), libigdgmm12, libze9 | libc6, opencl-c-headers")
    package(archives, "libigdfcl9", "1")  # nothing needs it
    both = found(archives)
    assert names(both) == [("intel-opencl-icd", "25.2", "25.1"), ("libigc2", "2.1", "2.0")]
    assert both.drivers[0].missing == ("intel-opencl-icd needs libigdgmm12",)
    assert both.drivers[0].id != compiler_only.drivers[0].id
    assert staged.stamp((), HostRoots(caches=tmp_path / "cache")) not in {"", before}

    package(archives, "libigdgmm12", "22", "libc6 (>= 2.99)")
    whole = found(archives)
    assert ("libigdgmm12", "22", "") in names(whole)
    assert whole.drivers[0].missing == ("libigdgmm12 needs libc6 (ge 2.99)",)


def as_pipe(one: Path) -> None:
    one.unlink()
    os.mkfifo(one)


@needs_dpkg
@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (lambda one: one.chmod(0o666), "others may write to it"),
        (lambda one: one.parent.chmod(0o777), "is not root's alone"),
        (lambda one: os.truncate(one, one.stat().st_size - 100), "it is not complete"),
        (lambda one: one.write_bytes(b"no package"), "it is not complete"),
        (lambda one: one.write_bytes(b"!<arch>\n"), "it is no package, or is damaged"),
        (lambda one: (one.rename(one.parent / "x"), one.symlink_to("x")), "it is no regular file"),
        (as_pipe, "it is no regular file"),
        pytest.param(
            lambda one: os.chown(one, 1234, 0),
            "it belongs to user 1234, and not to root",
            marks=pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away"),
        ),
    ],
)
def test_what_somebody_else_could_have_put_there_is_not_opened(
    archives: Path, spoil: Callable[[Path], object], why: str
) -> None:
    one = package(archives, "libigc2", "2.1")
    spoil(one)
    lying = found(archives)
    assert lying.drivers == ()
    (refused,) = lying.refused
    assert refused.startswith(f"{one} is not looked at: ")
    assert why in refused


@needs_dpkg
def test_what_the_lists_know_otherwise_is_not_opened(archives: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = package(archives, "libigc2", "2.1")
    monkeypatch.undo()
    digest = hashlib.sha256(one.read_bytes()).hexdigest()
    file = package_tools.read_deb(one)
    assert file is not None
    monkeypatch.setattr(shutil, "which", lambda _name: "/usr/bin/apt-cache")
    for said, differs in ((digest, False), ("0" * 64, True), ("", False)):
        monkeypatch.setattr(tools, "output", lambda _words, said=said: f"SHA256: {said}\n")
        assert package_tools.differs_from_lists(file) is differs


@needs_dpkg
def test_what_cannot_be_compared_with_the_lists_is_not_taken_and_is_compared_again(
    archives: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = package(archives, "libigc2", "2.1")
    other = one.parent

    def compare(_file: package_tools.PackageFile) -> bool:
        return package_tools._sha256(other) != ""

    monkeypatch.setattr(package_tools, "differs_from_lists", compare)
    words = f"{one} is not looked at: who reads its content ended with status 1"
    assert found(archives) == staged.Lying((), (words,))
    monkeypatch.setattr(package_tools, "differs_from_lists", lambda _file: False)
    assert names(found(archives)) == [("libigc2", "2.1", "2.0")]


@needs_dpkg
def test_the_lists_are_asked_where_something_is_newer_and_once(archives: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def differs(file: package_tools.PackageFile) -> bool:
        asked.append(file.package.version)
        return file.package.version == "2.2"

    monkeypatch.setattr(package_tools, "differs_from_lists", differs)
    package(archives, "libigc2", "2.0")
    assert (found(archives), asked) == (staged.Lying(), [])
    package(archives, "libigc2", "2.1")
    package(archives, "libigc2", "2.2")
    for _ in range(2):
        lying = found(archives)
        assert names(lying) == [("libigc2", "2.1", "2.0")]
        (refused,) = lying.refused
        assert refused.endswith(
            "2.2_amd64.deb is not looked at: it is not what the package lists know under this version"
        )
    assert asked == ["2.0", "2.1", "2.2", "2.2"]


@needs_dpkg
def test_only_what_programs_load_is_unpacked_with_its_times(archives: Path, tmp_path: Path) -> None:
    one = package(archives, "libigc2", "2.1")
    into = tmp_path / "into"
    assert unpacked(one, into) == len("libigc2") * 1000
    files = {str(path.relative_to(into)): path.lstat() for path in into.rglob("*") if not path.is_dir()}
    assert sorted(files) == [f"{LIBRARIES}/libigc2.so", f"{LIBRARIES}/libigc2.so.1"]
    # The GPU driver's cache knows its compiler by size and time.
    assert files[f"{LIBRARIES}/libigc2.so.1"].st_mtime_ns == MODIFIED * 10**9
    assert (into / LIBRARIES / "libigc2.so").resolve() == into / LIBRARIES / "libigc2.so.1"


@needs_dpkg
def test_a_package_that_is_cut_short_or_goes_is_not_unpacked(archives: Path, tmp_path: Path) -> None:
    one = package(archives, "libigc2", "2.1")
    os.truncate(one, one.stat().st_size - 3000)
    with pytest.raises(UnpackFailed, match=r"libigc2_2\.1_amd64\.deb is not unpacked: it cannot be read"):
        unpacked(one, tmp_path / "a")
    one.unlink()
    with pytest.raises(UnpackFailed, match="it cannot be read"):
        unpacked(one, tmp_path / "b")
    cancelled = threading.Event()
    cancelled.set()
    with pytest.raises(UnpackFailed, match="it was given up"):
        unpack(package(archives, "libigc2", "2.2"), tmp_path / "a", LIMITS, cancelled)


# -- hostile archives -----------------------------------------------------------------------------------------------


def member(name: str, **more: object) -> tarfile.TarInfo:
    one = tarfile.TarInfo(name)
    for key, value in more.items():
        setattr(one, key, value)
    return one


def hostile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, members: Mapping[tarfile.TarInfo, bytes]) -> Path:
    """Return a package that is a bare tar, which ``cat`` gives as it is."""
    path = tmp_path / "hostile.deb"
    with tarfile.open(path, "w") as archive:
        for one, content in members.items():
            one.size = len(content) or one.size
            archive.addfile(one, io.BytesIO(content) if content else None)
    monkeypatch.setitem(unpacking._READERS, ".deb", (("cat",), "tar"))
    return path


@pytest.mark.parametrize(
    ("members", "why"),
    [
        ({member("/usr/lib/x"): b"x"}, "a path is absolute: /usr/lib/x"),
        ({member("usr/lib/../../../x"): b"x"}, "a path leads out of it"),
        ({member("usr/share/../../x"): b"x"}, "a path leads out of it"),
        ({member("usr/" + "lib/" * 40 + "x"): b"x"}, "a path is too deep"),
        ({member("usr/lib/x", type=tarfile.SYMTYPE, linkname="../../../etc"): b""}, "a link leads out of it"),
        (
            {
                member("opt/x", type=tarfile.SYMTYPE, linkname=".."): b"",
                member("opt/d/y", type=tarfile.SYMTYPE, linkname="../x/../etc"): b"",
            },
            "a link leads out of it",
        ),
        (
            {member("usr/lib/x", type=tarfile.SYMTYPE, linkname="/etc"): b"", member("usr/lib/x/passwd"): b"x"},
            "a path goes through what is no folder: usr/lib/x",
        ),
        (
            {
                member("usr/lib/x", type=tarfile.SYMTYPE, linkname="/etc/passwd"): b"",
                member("usr/lib/y", type=tarfile.LNKTYPE, linkname="usr/lib/x"): b"",
            },
            "it gives another name to what is no file",
        ),
        ({member("usr/lib/y", type=tarfile.LNKTYPE, linkname="usr/lib/none"): b""}, "what is not in it"),
        ({member("usr/lib/x", type=tarfile.FIFOTYPE): b""}, "it holds a special file, which no driver does"),
        ({member("usr/lib/x", type=tarfile.CHRTYPE): b""}, "it holds a special file, which no driver does"),
        ({member("usr/lib/x", mtime=-5): b"x"}, "a file's time of change is none"),
        ({member("usr/lib/x", type=tarfile.DIRTYPE): b"", member("usr/lib/x "[:-1]): b"x"}, "stands where a folder is"),
        ({member(f"usr/share/{number}"): b"x" for number in range(60)}, "it holds too many files"),
    ],
)
def test_what_leads_out_of_it_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, members: Mapping[tarfile.TarInfo, bytes], why: str
) -> None:
    into = tmp_path / "into"
    with pytest.raises(UnpackFailed, match=why):
        unpacked(hostile(tmp_path, monkeypatch, members), into, UnpackLimits(reserve=0, most_members=50))
    assert all(path.resolve().is_relative_to(into) or path.is_symlink() for path in into.rglob("*"))


def test_a_bomb_ends_at_its_bounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bomb = hostile(tmp_path, monkeypatch, {member("usr/lib/x"): bytes(8 << 20)})
    into = tmp_path / "into"
    with pytest.raises(UnpackFailed, match="it holds more bytes than a driver does"):
        unpacked(bomb, into, UnpackLimits(most_bytes=2 << 20, reserve=0))
    assert sum(path.stat().st_size for path in into.rglob("x")) <= 2 << 20


def test_where_no_room_would_be_left_nothing_more_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = hostile(tmp_path, monkeypatch, {member("usr/lib/x"): b"x"})
    with pytest.raises(NoRoomLeft, match="would be free"):
        unpacked(one, tmp_path / "into", UnpackLimits(reserve=1 << 60))
    assert list((tmp_path / "into").iterdir()) == []


def heads(count: int) -> bytes:
    """Return heads that each say that the name of the next one follows."""
    return (member("././@LongLink", type=tarfile.GNUTYPE_LONGNAME, size=2).tobuf() + b"x\0".ljust(512, b"\0")) * count


def cpio(**fields: bytes) -> bytes:
    """Return a cpio archive of one small file, with some of its numbers forged."""
    names = ("inode", "mode", "user", "group", "names", "modified", "size", *("device",) * 4, "length", "check")
    numbers = {"mode": b"000081a4", "names": b"00000001", "size": b"00000003", "length": b"0000000a", **fields}
    return b"070701" + b"".join(numbers.get(name, b"00000000") for name in names) + b"usr/lib/x\0abc\0"


@pytest.mark.parametrize(
    ("archive", "form"),
    [
        (member("usr/lib/x", size=100_000).tobuf() + bytes(5000), "tar"),
        (heads(1000), "tar"),
        (cpio(size=b"-0000003"), "cpio"),
        (cpio(mode=b"-0000003"), "cpio"),
        (cpio(modified=b"0x000003"), "cpio"),
    ],
)
def test_what_breaks_off_or_has_a_forged_head_is_said_not_to_be_readable(
    archive: bytes, form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "forged.deb"
    path.write_bytes(archive)
    monkeypatch.setitem(unpacking._READERS, ".deb", (("cat",), form))
    with pytest.raises(UnpackFailed, match=r"forged\.deb is not unpacked: it cannot be read: "):
        unpacked(path, tmp_path / "into")


# -- rpm, images, power ---------------------------------------------------------------------------------------------

SPEC: Final = """
Name: intel-opencl
Version: 25.2
Release: 1
Summary: a driver
License: none
AutoReqProv: no
%description
A driver.
%install
mkdir -p %{buildroot}/usr/lib64/intel-opencl %{buildroot}/usr/share
printf compiler >%{buildroot}/usr/lib64/libigc.so.2.1
printf driver >%{buildroot}/usr/lib64/intel-opencl/libigdrcl.so
ln %{buildroot}/usr/lib64/libigc.so.2.1 %{buildroot}/usr/lib64/another
ln -s libigc.so.2.1 %{buildroot}/usr/lib64/libigc.so.2
touch -d @1700000001 %{buildroot}/usr/lib64/libigc.so.2.1
echo text >%{buildroot}/usr/share/text
%files
/usr/lib64/*
/usr/share/text
"""


@pytest.mark.skipif(shutil.which("rpmbuild") is None, reason="rpmbuild is not installed (Debian: apt-get install rpm)")
def test_an_rpm_that_dnf_downloaded_is_a_driver_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "driver.spec").write_text(SPEC)
    folder = tmp_path / "cache/dnf/updates-0123/packages"
    defines = [
        f"_topdir {tmp_path}/rpm",
        f"_rpmdir {folder}",
        "_build_name_fmt %%{NAME}-%%{VERSION}-%%{RELEASE}.%%{ARCH}.rpm",
    ]
    words = [os.fspath(shutil.which("rpmbuild") or ""), "-bb"]
    words += [word for one in defines for word in ("--define", one)]
    done = subprocess.run([*words, tmp_path / "driver.spec"], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    (made,) = folder.glob("*.rpm")
    places = HostRoots(caches=tmp_path / "cache")
    for version, is_newer in (("25.1-7", True), ("25.2-1", False), ("1:1-1", False)):
        monkeypatch.setattr(package_tools, "installed_rpms", lambda _names, one=version: {"intel-opencl": one})
        lying = staged.find([], (), places, owner=os.geteuid())
        assert bool(lying.drivers) is is_newer, lying
        assert lying.refused == ()
    into = tmp_path / "into"
    assert unpacked(made, into) == len("compiler") + len("driver")
    compiler = into / "usr/lib64/libigc.so.2"
    assert compiler.read_text() == "compiler"
    assert compiler.stat().st_mtime_ns == MODIFIED * 10**9
    assert (into / "usr/lib64/another").samefile(compiler)
    assert not (into / "usr/share").exists()
    data = bytearray(made.read_bytes())
    data[-20] ^= 1
    made.write_bytes(data)
    assert staged.find([], (), places, owner=os.geteuid()).refused == (
        f"{made} is not looked at: it is no package, or is damaged",
    )


def test_an_image_is_another_one_when_its_driver_is(tmp_path: Path) -> None:
    library = tmp_path / "images/next/usr/lib/x86_64-linux-gnu"
    library.mkdir(parents=True)
    (tmp_path / "images/here").symlink_to("/")
    (tmp_path / "images/text").write_text("no image")
    # What a configuration may name and is no image of another system hides none that is one.
    patterns = ("/", "//", "/./", "/..", f"/{'a' * 300}/x", str(tmp_path / "images/*"), str(tmp_path / "none"))
    places = HostRoots(caches=tmp_path)
    (driver,) = staged.find([], patterns, places).drivers
    assert driver == StagedDriver(driver.id, image=tmp_path / "images/next")
    before = staged.stamp(patterns, places)
    (library / "libze_intel_gpu.so.1").write_bytes(b"")
    assert staged.find([], patterns, places).drivers[0].id != driver.id
    assert staged.stamp(patterns, places) != before


@pytest.mark.parametrize(
    ("supplies", "on_battery"),
    [
        ({}, False),
        ({"BAT0": {"type": "Battery", "status": "Discharging"}}, True),
        ({"BAT0": {"type": "Battery", "status": "Charging"}}, False),
        ({"BAT0": {"type": "Battery", "status": "Discharging"}, "AC": {"type": "Mains", "online": "1"}}, False),
        ({"BAT0": {"type": "Battery", "status": "Discharging"}, "AC": {"type": "Mains", "online": "0"}}, True),
        ({"mouse": {"type": "Battery", "status": "Discharging", "scope": "Device"}}, False),
    ],
)
def test_a_machine_on_its_battery_is_known(
    tmp_path: Path, supplies: Mapping[str, Mapping[str, str]], *, on_battery: bool
) -> None:
    for name, facts in supplies.items():
        folder = tmp_path / "class/power_supply" / name
        folder.mkdir(parents=True)
        for fact, text in facts.items():
            (folder / fact).write_text(f"{text}\n")
    assert power.on_battery(HostRoots(sysfs=tmp_path)) is on_battery
