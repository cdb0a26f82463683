"""The host room: pretend machines in a temporary directory, real children, real processes."""

from __future__ import annotations

import dataclasses
import mmap
import os
import resource
import shutil
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from msgspec.structs import replace

from xpucached.domain.host import Device, DriverAnswer, Host, ProbeReport, Problem, Process
from xpucached.domain.names import Architecture
from xpucached.errors import HostError
from xpucached.host import driver_stamp, drivers, elf, gpu_devices, other_driver, process_table, staged, tools
from xpucached.host.roots import HostRoots
from xpucached.host.survey import survey as host_survey
from xpucached.kinds import sycl
from xpucached.processes import driver_probe

NOW = datetime(2026, 8, 1, 12, tzinfo=UTC)
V1 = "Intel(R) oneAPI Unified Runtime over Level-Zero"
V2 = f"{V1} V2"
CPU = DriverAnswer("Intel(R) OpenCL", "Intel(R) Xeon(R) Processor", "OpenCL 3.0 (Build 0)", "2025.20.12.0.09_233955")
B580 = DriverAnswer(V2, "Intel(R) Arc(TM) B580 Graphics", "20.1.0", "1.15.39122")
B580_CL = DriverAnswer("Intel(R) OpenCL Graphics", B580.device, "OpenCL 3.0 NEO ", "26.27.039122")
UNNAMED = DriverAnswer(V1, "Intel(R) Graphics [0xe202]", "20.1.0", "1.15.39122")


# -- a pretend machine --------------------------------------------------------------------------------------------


class Machine:
    """A machine made of files: what the kernel lists, what is installed."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.places = HostRoots(
            sysfs=root / "sys", proc=root / "proc", etc=root / "etc", dev=root / "dev", libraries=(root / "lib",)
        )
        for folder in ("sys/bus/pci/devices", "proc/sys/kernel/random", "etc/OpenCL/vendors", "dev/dri", "lib"):
            (root / folder).mkdir(parents=True)
        (root / "proc/sys/kernel/osrelease").write_text("6.14.0-test\n")
        (root / "proc/sys/kernel/random/boot_id").write_text("7756917a-6fc7-42a9-be6b-a51d589bfcc9\n")

    def pci(
        self, address: str, device: str, *, vendor: str = "0x8086", kind: str = "0x030000", driver: str = ""
    ) -> Path:
        """Add a PCI device."""
        path = self.places.sysfs / "bus/pci/devices" / address
        path.mkdir()
        for name, text in (("class", kind), ("vendor", vendor), ("device", device)):
            (path / name).write_text(f"{text}\n")
        if driver:
            folder = self.places.sysfs / "bus/pci/drivers" / driver
            folder.mkdir(parents=True, exist_ok=True)
            (path / "driver").symlink_to(f"../../drivers/{driver}")
        return path

    def gpu(self, address: str = "0000:03:00.0", device: str = "0xe20b", driver: str = "xe", node: int = 128) -> Path:
        """Add a GPU that works, with its render node."""
        path = self.pci(address, device, driver=driver)
        (path / f"drm/renderD{node}").mkdir(parents=True)
        (path / "drm/card1").mkdir()
        (self.places.dev / f"dri/renderD{node}").touch()
        return path

    def library(self, name: str, link: str | None = None, build_id: bytes = b"\x01\x02\x03") -> Path:
        """Install a library, and the link that programs load."""
        path = self.root / "lib" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(shared_object(build_id))
        if link:
            (path.parent / link).symlink_to(path.name)
        return path


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def shared_object(build_id: bytes, *, order: str = "<", wide: bool = True) -> bytes:
    """Return the smallest ELF file that carries a build id, behind a note of somebody else."""
    note = struct.pack(f"{order}III", 4, 4, 1) + b"XYZ\0" + b"junk"
    note += struct.pack(f"{order}III", 4, len(build_id), 3) + b"GNU\0" + build_id
    ident = b"\x7fELF" + bytes([2 if wide else 1, 1 if order == "<" else 2, 1]) + bytes(9)
    if wide:
        head = struct.pack(f"{order}HHIQQQIHHHHHH", 3, 62, 1, 0, 64, 0, 0, 64, 56, 2, 0, 0, 0)
        load = struct.pack(f"{order}IIQQQQQQ", 1, 5, 0, 0, 0, 0, 0, 0)
        segment = struct.pack(f"{order}IIQQQQQQ", 4, 4, 176, 0, 0, len(note), len(note), 4)
    else:
        head = struct.pack(f"{order}HHIIIIIHHHHHH", 3, 3, 1, 0, 52, 0, 0, 52, 32, 2, 0, 0, 0)
        load = struct.pack(f"{order}IIIIIIII", 1, 0, 0, 0, 0, 0, 5, 0)
        segment = struct.pack(f"{order}IIIIIIII", 4, 116, 0, 0, len(note), len(note), 4, 4)
    return ident + head + load + segment + note


# -- GPUs ---------------------------------------------------------------------------------------------------------


def test_gpus_of_a_machine(machine: Machine) -> None:
    machine.gpu()
    igpu = machine.gpu("0000:00:02.0", "0x56a0", "i915", 129)
    (machine.places.sysfs / "bus/pci/drivers/i915/module").mkdir()
    (igpu / "driver/module/version").write_text("1.25.2\n")
    machine.pci("0000:04:00.0", "0x0bda", kind="0x038000")
    machine.pci("0000:05:00.0", "0xffee", driver="xe")
    machine.pci("0000:06:00.0", "0x2684", vendor="0x10de", driver="nvidia")
    machine.pci("0000:00:1f.0", "0x7a04", kind="0x060100")
    found = gpu_devices.gpus(machine.places)
    assert [(one.pci_address, one.pci_id, one.architecture) for one in found] == [
        ("0000:00:02.0", "0x56a0", "acm-g10"),
        ("0000:03:00.0", "0xe20b", "bmg-g21"),
        ("0000:04:00.0", "0x0bda", "pvc"),
        ("0000:05:00.0", "0xffee", "0xffee"),
    ]
    assert [(one.kernel_driver, one.kernel_driver_version) for one in found] == [
        ("i915", "1.25.2"),
        ("xe", "6.14.0-test"),
        (None, None),
        ("xe", "6.14.0-test"),
    ]
    assert [one.render_node for one in found] == [
        machine.places.dev / "dri/renderD129",
        machine.places.dev / "dri/renderD128",
        None,
        None,
    ]
    assert found[3].name == "Intel(R) Graphics [0xffee]"


def test_virtual_functions_are_devices_too(machine: Machine) -> None:
    machine.gpu("0000:03:00.0", "0xe211")
    machine.gpu("0000:03:00.1", "0xe211", node=129)
    (machine.places.sysfs / "bus/pci/devices/0000:03:00.1/physfn").symlink_to("../0000:03:00.0")
    assert [one.pci_address for one in gpu_devices.gpus(machine.places)] == ["0000:03:00.0", "0000:03:00.1"]


@pytest.mark.parametrize("name", ["class", "vendor", "device"])
@pytest.mark.parametrize("damage", ["gone", "empty", "words", "directory", "long"])
def test_odd_device_does_not_hide_the_others(machine: Machine, name: str, damage: str) -> None:
    odd = machine.gpu("0000:02:00.0")
    machine.gpu("0000:03:00.0", node=129)
    (odd / name).unlink()
    if damage == "directory":
        (odd / name).mkdir()
    elif damage != "gone":
        (odd / name).write_text({"empty": "", "words": "0xwords\n", "long": "0x" + "8086" * 1000}[damage])
    assert [one.pci_address for one in gpu_devices.gpus(machine.places)] == ["0000:03:00.0"]


def test_machine_without_sysfs(tmp_path: Path) -> None:
    assert gpu_devices.gpus(HostRoots(sysfs=tmp_path / "nothing")) == ()


def test_kernel_and_boot(machine: Machine) -> None:
    assert gpu_devices.kernel(machine.places) == "6.14.0-test"
    assert gpu_devices.boot_id(machine.places) == "7756917a-6fc7-42a9-be6b-a51d589bfcc9"
    assert gpu_devices.kernel() == os.uname().release


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        (B580, "bmg-g21"),
        (replace(B580, version="20.1.4"), "bmg-g21"),  # a stepping, not the table's first version
        (replace(B580, version="12.60.7"), "pvc"),
        (replace(B580, version="99.1.0"), "bmg-g21"),  # then the name tells
        (replace(B580, device="Intel(R) Arc(TM) Z999", version="99.1.0"), "99.1.0"),
        (replace(B580, device="Intel(R) Graphics", version="1.3"), "1.3"),  # many have this name
        (B580_CL, "bmg-g21"),
        (replace(B580_CL, device="Intel(R) Graphics [0xE202]"), "bmg-g21"),
        (replace(B580_CL, device="Intel(R) UHD Graphics"), "OpenCL 3.0 NEO "),
        (CPU, "cpu"),
        (replace(CPU, version="OpenCL 3.1 (Build 0)"), "cpu"),
        (DriverAnswer("Portable Computing Language", "cpu-haswell", "OpenCL 3.0 PoCL", "7.0"), "OpenCL 3.0 PoCL"),
    ],
)
def test_architecture(environment: DriverAnswer, expected: str) -> None:
    assert gpu_devices.architecture(environment) == expected


def test_table_of_gpus_is_shipped_whole() -> None:
    table = gpu_devices.known()
    assert len(table) > 150
    assert table["0xe20b"].name == "Intel(R) Arc(TM) B580 Graphics"
    assert all(row.architecture and row.versions for row in table.values())


# -- build ids ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("wide", [True, False])
def test_build_id(tmp_path: Path, order: str, wide: bool) -> None:  # noqa: FBT001 - a table of cases
    library = tmp_path / "lib.so"
    library.write_bytes(shared_object(bytes(range(20)), order=order, wide=wide))
    assert elf.build_id(library) == bytes(range(20)).hex()


def test_build_id_of_the_running_python() -> None:
    readelf = shutil.which("readelf")
    if readelf is None:
        pytest.skip("no readelf")
    shown = subprocess.run([readelf, "-n", sys.executable], capture_output=True, text=True, check=True).stdout
    expected = [line.split()[-1] for line in shown.splitlines() if "Build ID" in line]
    assert elf.build_id(Path(sys.executable)) == (expected[0] if expected else None)


def test_damaged_library_has_no_build_id(tmp_path: Path) -> None:
    whole = shared_object(b"abcd")
    library = tmp_path / "lib.so"
    for length in range(len(whole)):
        library.write_bytes(whole[:length])
        assert elf.build_id(library) is None
    for at in range(16, len(whole) - 8):
        library.write_bytes(whole[:at] + b"\xff" * 4 + whole[at + 4 :])
        assert elf.build_id(library) in {None, "61626364"}


def test_build_id_of_what_is_no_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.so")
    assert elf.build_id(tmp_path / "pipe.so") is None
    assert elf.build_id(tmp_path) is None
    assert elf.build_id(tmp_path / "nothing.so") is None


# -- the driver's files -------------------------------------------------------------------------------------------


def install_gpu_driver(machine: Machine) -> None:
    """Install what a distribution's packages put into the library directory."""
    machine.library("libOpenCL.so.1.0.0", "libOpenCL.so.1")
    machine.library("libze_loader.so.1.32.0", "libze_loader.so.1")
    machine.library("libze_intel_gpu.so.1.15.39122", "libze_intel_gpu.so.1")
    machine.library("libigc.so.2.40.14+0", "libigc.so.2")
    machine.library("libigdfcl.so.2.40.14+0", "libigdfcl.so.2")
    machine.library("libopencl-clang.so.16")
    machine.library("libnothing.so.1")
    machine.library("intel-opencl/libigdrcl.so")
    icd = machine.places.etc / "OpenCL/vendors/intel.icd"
    icd.write_text(f"{machine.root}/lib/intel-opencl/libigdrcl.so\n")


def test_gpu_driver_and_its_compiler_are_found(machine: Machine) -> None:
    install_gpu_driver(machine)
    files = {file.target.name: file for file in drivers.driver_files({}, machine.places)}
    assert {name: file.version for name, file in files.items()} == {
        "libOpenCL.so.1.0.0": "1.0.0",
        "libze_loader.so.1.32.0": "1.32.0",
        "libze_intel_gpu.so.1.15.39122": "1.15.39122",
        "libigc.so.2.40.14+0": "2.40.14+0",
        "libigdfcl.so.2.40.14+0": "2.40.14+0",
        "libopencl-clang.so.16": None,
        "libigdrcl.so": None,
    }
    file = files["libze_intel_gpu.so.1.15.39122"]
    assert file.path == machine.root / "lib/libze_intel_gpu.so.1"
    assert file.build_id == "010203"
    assert file.size == file.target.stat().st_size
    assert abs(file.modified.timestamp() - file.target.stat().st_mtime) < 1e-3


@pytest.mark.parametrize("bound", ["_MOST_NAMES", "_MOST_FILES"])
def test_a_driver_of_which_not_all_is_looked_at_says_so(
    machine: Machine, bound: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    install_gpu_driver(machine)
    drivers.driver_files({}, machine.places)
    assert not caplog.messages
    monkeypatch.setattr(drivers, bound, 3)
    drivers.driver_files({}, machine.places)
    assert any("may be missed" in one for one in caplog.messages)


def test_a_folder_of_which_not_all_is_looked_at_is_not_said_to_hold_no_driver(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for place in ("folder", "scratch", "other"):
        (tmp_path / place).mkdir()
    for number in range(4):
        (tmp_path / "folder" / f"{number}").touch()
    with pytest.raises(HostError, match=r"folder$"):
        other_driver.unpacked(tmp_path / "folder", None, {}, 1.0, tmp_path / "scratch")
    monkeypatch.setattr(other_driver, "_MOST", 3)
    with pytest.raises(HostError, match="3 names were looked at and no more"):
        other_driver.unpacked(tmp_path / "folder", None, {}, 1.0, tmp_path / "other")


def test_nothing_is_installed(machine: Machine) -> None:
    assert drivers.driver_files({}, machine.places) == ()


def test_search_path_comes_first(machine: Machine) -> None:
    install_gpu_driver(machine)
    other = machine.library("../opt/libOpenCL.so.1")
    files = drivers.driver_files({"LD_LIBRARY_PATH": f":{machine.root}/none:{other.parent}"}, machine.places)
    assert other.resolve() in {file.target for file in files}
    assert "libOpenCL.so.1.0.0" not in {file.target.name for file in files}


def test_variables_name_other_drivers(machine: Machine) -> None:
    install_gpu_driver(machine)
    level_zero = machine.library("../opt/libze_intel_gpu.so.1")
    cpu = machine.library("../cpu/libintelocl.so")
    machine.library("../cpu/libintelocl.so.2025.20.12.0")
    machine.library("../cpu/libcommon_clang.so.2025.20.12.0")
    (cpu.parent / "cl.cfg").write_text("CL_CONFIG_USE_VECTORIZER = True\n")
    vendors = machine.root / "vendors"
    vendors.mkdir()
    variables = {
        "ZE_ENABLE_ALT_DRIVERS": str(level_zero),
        "OCL_ICD_VENDORS": str(vendors),
        "OCL_ICD_FILENAMES": f"libnowhere.so:{cpu}",
    }
    files = {file.target.name: file for file in drivers.driver_files(variables, machine.places)}
    assert files["libze_intel_gpu.so.1"].target == level_zero.resolve()
    assert files["libintelocl.so"].version == "2025.20.12.0"  # its twin's name tells
    assert {"libcommon_clang.so.2025.20.12.0", "cl.cfg"} <= set(files)
    assert "libze_intel_gpu.so.1.15.39122" not in files
    assert "libigdrcl.so" not in files


@pytest.mark.parametrize("content", [b"", b"\0\0", b"\xff\xfe\n", b"relative/lib.so\n", b"A" * 1_000_000, None])
def test_icd_file_that_names_nothing(machine: Machine, content: bytes | None) -> None:
    path = machine.places.etc / "OpenCL/vendors/odd.icd"
    if content is None:
        os.mkfifo(path)
    else:
        path.write_bytes(content)
    assert drivers.driver_files({}, machine.places) == ()


def test_stamp_changes_with_the_driver_and_only_then(machine: Machine) -> None:
    install_gpu_driver(machine)

    def stamp() -> str:
        return drivers.stamp(drivers.driver_files({}, machine.places), "6.14")

    first = stamp()
    assert len(first) == 16
    assert stamp() == first
    assert drivers.stamp(tuple(reversed(drivers.driver_files({}, machine.places))), "6.14") == first
    assert drivers.stamp(drivers.driver_files({}, machine.places), "6.15") != first
    library = machine.root / "lib/libigc.so.2.40.14+0"
    before = library.stat()
    library.write_bytes(shared_object(b"\x09\x02\x03"))
    os.utime(library, ns=(before.st_atime_ns, before.st_mtime_ns))
    rebuilt = stamp()  # same size and time, another build
    assert rebuilt != first
    (machine.root / "lib/libigc.so.2").unlink()
    machine.library("libigc.so.2.41.0+0", "libigc.so.2")
    assert stamp() not in {first, rebuilt}


def test_without_a_free_descriptor_nothing_is_said_to_be_gone(machine: Machine) -> None:
    install_gpu_driver(machine)
    machine.gpu()
    packages = machine.root / "cache/apt/archives"
    packages.mkdir(parents=True)
    (packages / "intel-opencl-icd_26_amd64.deb").touch()
    places = dataclasses.replace(machine.places, caches=machine.root / "cache")
    questions: tuple[Callable[[], object], ...] = (
        lambda: drivers.driver_files({}, places),
        lambda: elf.build_id(machine.root / "lib/libigc.so.2"),
        lambda: gpu_devices.gpus(places),
        lambda: driver_stamp.fingerprint({}, places),
        lambda: staged.stamp((), places),
    )
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    for number, question in enumerate(questions):
        assert question()
        resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
        try:
            with pytest.raises(OSError, match="Too many open files"):
                print(number, question())
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_package_of_a_file() -> None:
    tool = shutil.which("dpkg-query")
    if tool is None:
        pytest.skip("no dpkg")
    (path,) = [one for one in (Path("/usr/bin/dpkg-query"), Path(tool).resolve()) if one.is_file()][:1]
    shown = subprocess.run([tool, "-W", "-f", "${Version}", "dpkg"], capture_output=True, text=True, check=True).stdout
    assert drivers.packages([path, Path(__file__)]) == {path: f"dpkg {shown}", Path(__file__): None}


def test_rpm_is_asked_where_it_has_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library, database = tmp_path / "libintelocl.so", tmp_path / "rpm"
    library.touch()
    database.mkdir()
    asked: list[str] = []

    def output(command: list[str]) -> str:
        asked.append(command[0])
        return "driver 1-2\n"

    monkeypatch.setattr(drivers, "_RPM_DATABASES", (tmp_path / "nowhere", database))
    # No host has both: one that was installed with rpm, and rpm as a mere tool.
    monkeypatch.setattr(shutil, "which", lambda tool: f"/usr/bin/{tool}" if tool == "rpm" else None)
    monkeypatch.setattr(tools, "output", output)
    assert drivers.packages([library]) == {library: None}
    assert asked == []
    (database / "rpmdb.sqlite").touch()
    os.utime(library, (1, 1))
    assert drivers.packages([library]) == {library: "driver 1-2"}
    assert asked == ["rpm"]


def test_package_of_a_wheels_file(tmp_path: Path) -> None:
    library = tmp_path / "lib/libintelocl.so"
    record = tmp_path / "lib/python3.11/site-packages/intel_opencl_rt-2025.2.2.dist-info/RECORD"
    other = tmp_path / "lib/python3.11/site-packages/aaa-1.0.dist-info/RECORD"
    for path, text in (
        (library, ""),
        (record, "x/y.py,,\n../../libintelocl.so,sha256=xeAb,108180904\n"),
        (other, "aaa/libintelocl.so,,\n../../libintelocl.so.old,,\n"),
    ):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert drivers.packages([library]) == {library: "intel-opencl-rt 2025.2.2"}


@pytest.mark.timeout(20)
def test_a_record_of_a_wheel_that_is_a_pipe_holds_nobody_up(tmp_path: Path) -> None:
    library = tmp_path / "lib/libintelocl.so"
    record = tmp_path / "lib/python3.11/site-packages/intel_opencl_rt-2025.2.2.dist-info/RECORD"
    record.parent.mkdir(parents=True)
    library.touch()
    os.mkfifo(record)
    assert drivers.packages([library]) == {library: None}


def test_watched_directories_follow_links(machine: Machine) -> None:
    real = machine.root / "opt/2025.3/lib"
    real.mkdir(parents=True)
    (machine.root / "opt/latest").symlink_to("2025.3")
    (real / "libintelocl.so.1").write_bytes(shared_object(b"1"))
    (real / "libintelocl.so").symlink_to("libintelocl.so.1")
    variables = {"OCL_ICD_FILENAMES": str(machine.root / "opt/latest/lib/libintelocl.so")}
    found = drivers.watched(variables, machine.places)
    assert {
        machine.places.etc,
        machine.places.etc / "OpenCL/vendors",
        machine.root / "opt",
        machine.root / "opt/latest/lib",
        real,
    } <= set(found)
    assert len(found) == len(set(found))
    assert all(path.is_dir() for path in found)


def test_watched_survives_a_ring_of_links(machine: Machine) -> None:
    (machine.root / "a.so").symlink_to("b.so")
    (machine.root / "b.so").symlink_to("a.so")
    found = drivers.watched({"OCL_ICD_FILENAMES": str(machine.root / "a.so")}, machine.places)
    assert machine.root in found


def test_nothing_to_watch(tmp_path: Path) -> None:
    assert drivers.watched({}, HostRoots(etc=tmp_path / "nothing", libraries=())) == ()


# -- asking: children that misbehave ------------------------------------------------------------------------------

STAND_IN = """
import json, os, signal, subprocess, sys, time
backend, fd = sys.argv[2], int(sys.argv[4])
def say(value):
    data = value if isinstance(value, bytes) else json.dumps(value).encode()
    while data:
        data = data[os.write(fd, data):]
good = {"environments": [["p", backend, "v", "d"]], "problems": [["a-code", "message", "hint"]]}
"""


def stand_in(folder: Path, body: str) -> Path:
    """Write a probe that behaves as ``body`` says."""
    path = folder / "stand_in.py"
    path.write_text(STAND_IN + body)
    return path


def test_each_backend_has_its_own_child(tmp_path: Path) -> None:
    body = "if backend == 'opencl': os.kill(os.getpid(), signal.SIGSEGV)\nsay(good)"
    report = driver_probe.ask({}, 30, probe=stand_in(tmp_path, body))
    assert report.answers == (DriverAnswer("p", "level-zero", "v", "d"),)
    assert [problem.code for problem in report.problems] == ["probe-crashed", "a-code"]
    assert "SIGSEGV" in report.problems[0].message
    assert "opencl" in report.problems[0].message


def test_child_sees_the_variables(tmp_path: Path) -> None:
    body = "say({'environments': [[os.environ['WHAT'], os.environ['HOME'], 'v', 'd ']], 'problems': []})"
    report = driver_probe.ask({"WHAT": "given", "HOME": "/nowhere"}, 30, probe=stand_in(tmp_path, body))
    assert report.answers == (DriverAnswer("given", "/nowhere", "v", "d "),)


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ("sys.exit(3)", "probe-crashed"),
        ("raise RuntimeError('no luck')", "probe-crashed"),
        ("say(good); os.abort()", "probe-crashed"),
        ("", "probe-garbled"),
        ("say(b'not json')", "probe-garbled"),
        ("say(b'[' * 500000)", "probe-garbled"),
        ("say([good])", "probe-garbled"),
        ("say({**good, 'more': 1})", "probe-garbled"),
        ("say({**good, 'environments': [['p', 'd', 'v']]})", "probe-garbled"),
        ("say({**good, 'environments': [['p', 'd', 'v', 4]]})", "probe-garbled"),
        ("say({**good, 'environments': [['p', 'd', 'v', 'x' * 5000]]})", "probe-garbled"),
        ("say({**good, 'environments': [['p', 'd', 'v', 'nul\\0']]})", "probe-garbled"),
        ("say({**good, 'environments': [['p', 'd', 'v', 'd']] * 1000})", "probe-garbled"),
        ("say({**good, 'environments': {}})", "probe-garbled"),
        ("say({**good, 'problems': [['Bad Code', '', '']]})", "probe-garbled"),
        ("say(b' ' * (3 << 20)); time.sleep(3600)", "probe-garbled"),
    ],
)
def test_answers_that_are_none(tmp_path: Path, body: str, code: str) -> None:
    report = driver_probe.ask({}, 30, probe=stand_in(tmp_path, body))
    assert report.answers == ()
    assert {problem.code for problem in report.problems} == {code}


def test_last_words_are_told(tmp_path: Path) -> None:
    report = driver_probe.ask({}, 30, probe=stand_in(tmp_path, "raise RuntimeError('no luck')"))
    assert all("no luck" in problem.message for problem in report.problems)


def test_chatter_blocks_nobody_and_is_cut(tmp_path: Path) -> None:
    body = "print('x' * (4 << 20), flush=True); print('the end', file=sys.stderr, flush=True); sys.exit(1)"
    report = driver_probe.ask({}, 30, probe=stand_in(tmp_path, body))
    assert {problem.code for problem in report.problems} == {"probe-crashed"}
    assert all("the end" in problem.message and len(problem.message) < 5000 for problem in report.problems)


@pytest.mark.parametrize("held", ["", "os.close(fd); os.close(1); os.close(2)"])
def test_silence_ends(tmp_path: Path, held: str) -> None:
    report = driver_probe.ask({}, 0.5, probe=stand_in(tmp_path, f"{held}\ntime.sleep(3600)"))
    assert {problem.code for problem in report.problems} == {"probe-timed-out"}


def gone(pid: int) -> bool:
    """Wait until a process has ended, for as long as a test may last."""
    for _ in range(1000):
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return True
        if state == "Z":  # whoever inherited it has not looked yet
            return True
        time.sleep(0.02)
    return False


@pytest.mark.parametrize("ending", ["say(good)", "time.sleep(3600)"])
def test_nothing_of_a_child_is_left(tmp_path: Path, ending: str) -> None:
    body = f"""
left = subprocess.Popen(["sleep", "3600"], pass_fds=(fd,))
open({str(tmp_path)!r} + "/" + backend, "w").write(f"{{os.getpid()}} {{left.pid}}")
{ending}
os._exit(0)
"""
    report = driver_probe.ask({}, 2.0, probe=stand_in(tmp_path, body))
    pids = [int(pid) for backend in driver_probe.BACKENDS for pid in (tmp_path / backend).read_text().split()]
    assert len(pids) == 4
    assert all(gone(pid) for pid in pids)
    assert len(report.answers) == (2 if "good" in ending else 0)


def test_no_descriptor_is_left(tmp_path: Path) -> None:
    driver_probe.ask({}, 30, probe=stand_in(tmp_path, "say(good)"))
    before = len(os.listdir("/proc/self/fd"))
    driver_probe.ask({}, 30, probe=stand_in(tmp_path, "say(good)"))
    driver_probe.ask({}, 30, probe=tmp_path / "nothing.py")
    assert len(os.listdir("/proc/self/fd")) == before


# -- the survey ---------------------------------------------------------------------------------------------------


def survey(machine: Machine, *environments: DriverAnswer, problems: tuple[Problem, ...] = ()) -> Host:
    return host_survey(ProbeReport(environments, problems), {}, NOW, machine.places)


def codes(found: Host) -> list[str]:
    return [problem.code for problem in found.problems]


def test_gpu_with_its_environments(machine: Machine) -> None:
    machine.gpu()
    install_gpu_driver(machine)
    found = survey(machine, B580_CL, B580, replace(B580, platform=V1))
    (device,) = found.devices
    assert device.answers == (B580, replace(B580, platform=V1), B580_CL)
    assert (device.pci_id, device.architecture, device.name) == ("0xe20b", "bmg-g21", B580.device)
    assert found.answers == (B580, replace(B580, platform=V1), B580_CL)
    assert codes(found) == []
    assert (found.surveyed, found.kernel) == (NOW, "6.14.0-test")
    assert found.stamp == drivers.stamp(found.driver, found.kernel)


def test_survey_takes_the_files_that_were_there_before_the_question(machine: Machine) -> None:
    install_gpu_driver(machine)
    before = drivers.driver_files({}, machine.places)
    (machine.root / "lib/libigc.so.2").unlink()
    machine.library("libigc.so.2.41.0+0", "libigc.so.2")
    found = host_survey(ProbeReport(), {}, NOW, machine.places, files=before)
    assert found.driver == before
    assert found.stamp != survey(machine).stamp


def test_gpu_whose_driver_knows_no_name(machine: Machine) -> None:
    machine.gpu(device="0xe202")
    machine.gpu("0000:04:00.0", "0xe20b", node=129)
    first, second = survey(machine, UNNAMED, B580).devices
    assert first.answers == (UNNAMED,)
    assert second.answers == (B580,)


def test_equal_gpus_share_an_environment(machine: Machine) -> None:
    machine.gpu()
    machine.gpu("0000:04:00.0", node=129)
    assert [one.answers for one in survey(machine, B580).devices] == [(B580,), (B580,)]


def test_names_part_gpus_of_one_generation(machine: Machine) -> None:
    machine.gpu(device="0xe20b")
    machine.gpu("0000:04:00.0", "0xe20c", node=129)
    b570 = replace(B580, device="Intel(R) Arc(TM) B570 Graphics")
    assert [one.answers for one in survey(machine, B580, b570).devices] == [(B580,), (b570,)]


def test_opencl_follows_level_zero_by_name(machine: Machine) -> None:
    machine.gpu(device="0x64a0")
    level_zero = DriverAnswer(V2, "Intel(R) Graphics", "20.4.4", "1.15.39122")
    opencl = replace(B580_CL, device="Intel(R) Graphics")
    (device,) = survey(machine, opencl, level_zero).devices
    assert device.answers == (level_zero, opencl)


def test_gpu_that_the_table_does_not_know(machine: Machine) -> None:
    machine.gpu(device="0xffee")
    stranger = DriverAnswer(V2, "Intel(R) Arc(TM) Z999", "99.1.0", "3.0.1")
    (device,) = survey(machine, stranger).devices
    assert (device.pci_id, device.architecture, device.answers) == ("0xffee", "99.1.0", (stranger,))


def test_environment_that_no_gpu_explains(machine: Machine) -> None:
    machine.gpu(device="0x0bda")
    pvc, arc, cpu = survey(machine, B580, B580_CL, CPU).devices
    assert pvc.answers == ()
    assert arc == Device(B580.device, Architecture("bmg-g21"), answers=(B580, B580_CL))
    assert cpu == Device(CPU.device, gpu_devices.CPU, answers=(CPU,))


def test_machine_with_only_the_cpu(machine: Machine) -> None:
    missing = Problem("no-level-zero", "the Level Zero loader cannot be loaded")
    found = survey(machine, CPU, problems=(missing,))
    assert [device.architecture for device in found.devices] == ["cpu"]
    assert codes(found) == ["no-gpu"]
    assert "CPU" in found.problems[0].message


def test_machine_with_nothing(machine: Machine) -> None:
    found = survey(machine, problems=(Problem("no-opencl", "m"), Problem("no-opencl", "m")))
    assert found.devices == ()
    assert codes(found) == ["no-opencl", "no-gpu"]


def test_gpu_without_a_driver(machine: Machine) -> None:
    machine.gpu()
    found = survey(machine, CPU, problems=(Problem("no-level-zero", "m"),))
    assert codes(found) == ["no-driver", "no-level-zero"]
    assert "0000:03:00.0" in found.problems[0].message


@pytest.mark.parametrize("driver", ["", "vfio-pci"])
def test_gpu_that_the_kernel_does_not_give(machine: Machine, driver: str) -> None:
    machine.gpu()
    machine.pci("0000:04:00.0", "0xe20b", driver=driver)
    found = survey(machine, B580)
    assert [one.answers for one in found.devices] == [(B580,), ()]
    assert codes(found) == ["kernel-driver-unbound"]
    assert driver in found.problems[0].message


def test_render_node_that_is_not_there(machine: Machine) -> None:
    machine.gpu()
    (machine.places.dev / "dri/renderD128").unlink()
    assert codes(survey(machine, B580)) == ["no-render-access"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may open everything")
def test_render_node_that_may_not_be_opened(machine: Machine) -> None:
    machine.gpu()
    (machine.places.dev / "dri/renderD128").chmod(0)
    assert codes(survey(machine, B580)) == ["no-render-access"]


# -- processes ----------------------------------------------------------------------------------------------------


def mapping(library: Path) -> None:
    """Map a library into this process for ever, and say so: runs in a child."""
    with library.open("rb") as stream, mmap.mmap(stream.fileno(), 0, prot=mmap.PROT_READ) as _:
        print("ready", flush=True)
        signal.pause()


CHILD = """
import sys
from pathlib import Path
sys.path[:0] = sys.argv[2:]
import test_host
test_host.mapping(Path(sys.argv[1]))
"""


def writer_since(processes: Iterable[Process]) -> datetime | None:
    return process_table.writer_since(processes, sycl.discovery.LIBRARIES, sycl.discovery.writes)


def test_processes_of_this_user(tmp_path: Path) -> None:
    library = tmp_path / "libsycl.so.8.0.0"
    library.write_bytes(bytes(4096))
    here = str(Path(__file__).parent)
    program = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(library), here, str(Path(here).parent)],
        cwd=tmp_path,
        env={**os.environ, "SYCL_CACHE_DIR": "/somewhere", "SECRET_TOKEN": "hush"},
        stdout=subprocess.PIPE,
    )
    other = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()", str(driver_probe.PROBE)])
    try:
        assert program.stdout is not None
        assert program.stdout.readline() == b"ready\n"
        found = {process.pid: process for process in process_table.processes(os.geteuid(), ("libsycl",))}
        mine = found[program.pid]
        assert mine.directory == tmp_path
        assert mine.variables["SYCL_CACHE_DIR"] == "/somewhere"
        assert "SECRET_TOKEN" not in mine.variables
        assert mine.libraries == (library,)
        assert mine.uid == os.geteuid()
        assert abs(mine.started - datetime.now(UTC)) < timedelta(minutes=5)
        assert os.getpid() not in found
        assert other.pid not in found
        # It sleeps and has no file of a cache open, so it holds no lock; once it is stopped nobody can say.
        assert writer_since([mine]) is None
        program.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, program.pid, os.WSTOPPED | os.WNOWAIT)
        assert writer_since(process_table.processes(os.geteuid(), ("libsycl",))) is not None
        program.send_signal(signal.SIGCONT)
        library.unlink()
        (again,) = [one for one in process_table.processes(os.geteuid(), ("libsycl",)) if one.pid == program.pid]
        assert again.libraries == (library,)
    finally:
        for process in (program, other):
            process.kill()
            process.communicate()
    assert program.pid not in {process.pid for process in process_table.processes(os.geteuid(), ("libsycl",))}


MAPPING = """
import mmap, sys
for line in sys.stdin:
    with open(line.strip(), "rb") as file:
        kept = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
        kept[0]
    print("mapped", flush=True)
"""


def test_what_a_process_has_mapped_is_read_again_when_it_maps_something(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[Path] = []
    really = process_table._libraries

    def reading(maps: Path, names: tuple[str, ...], share: process_table._Share) -> tuple[Path, ...] | None:
        read.append(maps)
        return really(maps, names, share)

    monkeypatch.setattr(process_table, "_libraries", reading)
    with subprocess.Popen(
        [sys.executable, "-c", MAPPING], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as program:

        def told(name: str) -> tuple[Path, ...]:
            assert program.stdin is not None
            assert program.stdout is not None
            (tmp_path / name).write_bytes(bytes(4096))
            print(tmp_path / name, file=program.stdin, flush=True)
            assert program.stdout.readline() == "mapped\n"
            # Then it waits for the next one.
            while (Path(f"/proc/{program.pid}/stat").read_text("ascii").rpartition(")")[2].split()[0]) != "S":
                pass
            (one,) = (one for one in process_table.processes(os.geteuid(), ("libsycl",)) if one.pid == program.pid)
            (same,) = (one for one in process_table.processes(os.geteuid(), ("libsycl",)) if one.pid == program.pid)
            assert same == one
            return one.libraries

        assert told("libsycl.so.7") == (tmp_path / "libsycl.so.7",)
        # As large as the one before, which goes.
        assert told("libsycl.so.8") == (tmp_path / "libsycl.so.8",)
        assert read.count(Path(f"/proc/{program.pid}/maps")) == 2


def test_processes_of_a_user_without_any() -> None:
    assert process_table.processes(4_000_000_000) == ()


def test_writer_since_is_the_oldest_that_maps_the_runtime() -> None:
    def process(pid: int, minutes: int, library: str) -> Process:
        return Process(pid, 0, NOW + timedelta(minutes=minutes), "python", None, {}, (Path(library),))

    if os.readlink("/proc/self/ns/pid") != "pid:[4026531836]":  # noqa: PTH115 - no path
        pytest.skip("other processes may live here that are not seen: then anybody may be writing")
    children = [subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"]) for _ in range(3)]
    first, second, third = (child.pid for child in children)
    some = [
        process(first, 0, "/usr/lib/libOpenCL.so.1"),
        process(second, 9, "/a/libsycl.so.8"),
        process(third, 5, "/a/libsycl.so"),
    ]
    try:
        for pid in (first, second):
            os.kill(pid, signal.SIGSTOP)
            os.waitpid(pid, os.WUNTRACED)
        # The third runs and has no file of a cache open: it does not hold a lock.
        assert writer_since(some) == NOW + timedelta(minutes=9)
        assert writer_since(some[:1]) is None
    finally:
        for child in children:
            child.kill()
            child.wait()


def test_what_lies_in_directories_of_drivers_is_listed_in_bounds(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drivers, "_MOST_NAMES", 20)
    vendors, packages = machine.root / "vendors", machine.root / "lib/python3.11/site-packages"
    library = machine.root / "lib/libintelocl.so"
    vendors.mkdir()
    for number in range(50):
        (vendors / f"{number}.icd").write_text(f"/{number}.so")
        record = packages / f"a-{number}.dist-info/RECORD"
        record.parent.mkdir(parents=True)
        record.write_text("../../other.so,,")
    library.touch()
    read: list[str] = []

    def note(path: str, _size: int) -> bytes:
        read.append(path)
        return b""

    monkeypatch.setattr(drivers, "head", note)
    assert len(drivers._icds({"OCL_ICD_VENDORS": str(vendors)}, machine.places)) == 20
    assert drivers.packages([library]) == {library: None}
    assert len(read) == 20
