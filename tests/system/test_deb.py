"""The package for Debian, on a Debian 12 and a Debian 13 without a network: from its installation to its purge."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

import debian as debian_tool
import make_deb
import make_rpm
import manual
import pytest
import tree as packed

from tests import REPOSITORY
from tests.conftest import DEBIAN, MUST_HAVE_SYSTEMD
from tests.support import hosts
from tests.support.house import PLACE, RUNTIMES, House, drivers

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.runtimes import Runtime

WHEELS: Final = DEBIAN / "wheels"
FIRST: Final = "0.0.1~test1"
SECOND: Final = "0.0.1~test2"


def tool(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed (Debian: apt-get install {name})")
    return found


def lacking(reason: str) -> None:
    if MUST_HAVE_SYSTEMD:
        pytest.fail(reason)
    pytest.skip(reason)


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build our own wheel from a copy of the tree, with man pages."""
    tree = tmp_path_factory.mktemp("tree")
    for name in ("LICENSE", "README.md", "pyproject.toml", "setup.py"):
        shutil.copy(REPOSITORY / name, tree)
    for name in ("migrations", "systemd", "xpucached"):
        shutil.copytree(REPOSITORY / name, tree / name, ignore=shutil.ignore_patterns("__pycache__", "manual"))
    manual.write(tree / "xpucached/data/manual")
    code = "from setuptools import build_meta; print(build_meta.build_wheel('dist'))"
    done = subprocess.run([sys.executable, "-c", code], cwd=tree, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return tree / "dist" / done.stdout.split()[-1]


@pytest.fixture(scope="session")
def debs(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build two versions of the package."""
    if shutil.which("dpkg-deb") is None:
        lacking("dpkg-deb is not installed")
    if not packed.is_fetched(WHEELS):
        lacking(f"the wheels that the package brings are not there; run: python3 tools/tree.py {WHEELS}")
    place = tmp_path_factory.mktemp("debs")
    for version in (FIRST, SECOND):
        make_deb.build(wheel, WHEELS, place, version, ("-Zgzip", "-z1"))
    return place


def deb(place: Path, version: str) -> Path:
    return place / f"xpucached_{version}_amd64.deb"


def driver(place: Path, version: str, *, firmware: bool = False) -> Path:
    """Build a package such as a driver's: a library with a new name, and a file that says where it is; or firmware."""
    tree = place / f"driver-{version}"
    library = tree / f"usr/lib/x86_64-linux-gnu/libze_intel_gpu.so.1.{version}"
    library.parent.mkdir(parents=True)
    library.write_bytes(b"no library")
    icd = tree / "etc/OpenCL/vendors/intel.icd"
    icd.parent.mkdir(parents=True)
    icd.write_text(f"/usr/lib/x86_64-linux-gnu/intel-opencl/libigdrcl.so.{version}\n")
    if firmware:
        shutil.rmtree(tree)
        (tree / "usr/lib/firmware/xe").mkdir(parents=True)
        (tree / f"usr/lib/firmware/xe/bmg_guc_{version}.bin").write_bytes(b"no firmware")
    (tree / "DEBIAN").mkdir()
    (tree / "DEBIAN/control").write_text(
        f"Package: pretend-driver\nVersion: {version}\nArchitecture: amd64\n"
        "Maintainer: nobody <nobody@invalid.invalid>\n"
        "Description: stands for a driver\n"
    )
    if not firmware:
        (tree / "DEBIAN/triggers").write_text("activate-noawait ldconfig\n")
    made = place / f"driver-{version}.deb"
    subprocess.run([tool("dpkg-deb"), "--root-owner-group", "-b", tree, made], check=True, capture_output=True)
    return made


# -- without a machine ----------------------------------------------------------------------------------------------


def test_the_same_package_is_made_again(debs: Path, wheel: Path, tmp_path: Path) -> None:
    again = make_deb.build(wheel, WHEELS, tmp_path, FIRST, ("-Zgzip", "-z1"))

    assert again.read_bytes() == deb(debs, FIRST).read_bytes()


def test_what_is_in_it_is_root_s_and_has_its_place(debs: Path) -> None:
    listed = subprocess.run(
        [tool("dpkg-deb"), "--contents", deb(debs, FIRST)], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    lines = [line.split(maxsplit=5) for line in listed]
    names = {line[5].partition(" -> ")[0] for line in lines}

    assert {line[1] for line in lines} == {"root/root"}
    assert all("w" not in line[0][5:] for line in lines if not line[0].startswith("l"))
    for page in manual.PAGES:
        assert f"./usr/share/man/man{page[-1]}/{page}.gz" in names
    for name in ("bash-completion/completions/xpucachectl", "zsh/vendor-completions/_xpucachectl"):
        assert f"./usr/share/{name}" in names
    for path in (REPOSITORY / "systemd").glob("*.s*"):
        assert f"./usr/lib/systemd/system/{path.name}" in names
    assert not [name for name in names if re.search(r"/(tests?|__pycache__)/", name)]


def test_lintian_finds_nothing_serious(debs: Path) -> None:
    done = subprocess.run(
        [tool("lintian"), "--allow-root", "--fail-on=error", deb(debs, FIRST)],
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stdout


@pytest.fixture(scope="session")
def rpm(debs: Path, wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the same content as an rpm."""
    tool("rpmbuild")
    assert debs.is_dir()
    return make_rpm.build(wheel, WHEELS, tmp_path_factory.mktemp("rpm"), "0.0.1", "w1.gzdio")


def test_an_rpm_has_the_same_content(debs: Path, rpm: Path, tmp_path: Path) -> None:
    def asked(*words: str) -> list[str]:
        command = [tool("rpm"), "--dbpath", os.fspath(tmp_path / "db"), "-qp", *words, os.fspath(rpm)]
        return str(subprocess.run(command, capture_output=True, text=True, check=True).stdout).splitlines()

    packed = subprocess.run(
        [tool("dpkg-deb"), "--contents", deb(debs, FIRST)], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    files = {line.split(maxsplit=5)[5].partition(" -> ")[0][1:] for line in packed if not line.startswith("d")}
    # Each distribution has its own papers, and another folder for zsh.
    papers = re.compile(r"/usr/share/(doc/xpucached/(changelog.gz|NEWS.md.gz|copyright)|lintian/|zsh/)")
    assert {name for name in files if not papers.match(name)} <= set(asked("--list"))
    assert "/usr/share/zsh/site-functions/_xpucachectl" in asked("--list")
    hook = "/etc/shadow-maint/userdel-pre.d/xpucached"
    assert asked("--configfiles") == [hook, "/etc/xpucached/xpucached.toml"]
    assert {line.split()[2] for line in asked("--list", "--verbose")} == {"root"}
    assert {"polkit", "systemd >= 249"} <= set(asked("--requires"))
    triggers = "\n".join(asked("--filetriggers"))
    assert f"transfiletriggerin scriptlet (using /bin/sh) -- {', '.join(sorted(make_rpm.FOLDERS.split()))}" in triggers


# In a root of its own, below an overlay that is gone with the process.
IN_A_ROOT: Final = """
set -e
mount -t tmpfs -o mode=755 tmpfs /mnt
mkdir /mnt/upper /mnt/work /mnt/root
mount -t overlay overlay -o "lowerdir=$1,upperdir=/mnt/upper,workdir=/mnt/work" /mnt/root
mount -t proc proc /mnt/root/proc
rpm --root=/mnt/root --nodeps --nosignature -i "$2"
chroot /mnt/root xpucachectl --version
chroot /mnt/root getent passwd xpucached | cut -d: -f1
# Compiled once, by root: the daemon may not write there.
chroot /mnt/root find /usr/lib/xpucached/common/xpucached/cli -name 'connect.*.pyc' -printf '%f\\n'
rpm --root=/mnt/root --nodeps -e xpucached
find /mnt/root/usr /mnt/root/etc -name '*xpucached*' -not -name xpucached-test.conf
"""


def test_an_rpm_is_installed_with_its_scripts_runs_and_goes(rpm: Path) -> None:
    root = debian_tool.root(DEBIAN)
    reason = hosts.why_not(root if debian_tool.is_finished(root) else None)
    if reason:
        lacking(reason)
    command = ["unshare", "--mount", "--propagation=private", "sh", "-c", IN_A_ROOT, "sh", str(root), str(rpm)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
    version, account, *rest = done.stdout.splitlines()
    assert version.startswith("xpucachectl ")
    assert account == "xpucached"
    assert rest == ["connect.cpython-311.pyc"]


@pytest.mark.parametrize(
    ("name", "counts"),
    [
        ("/usr/lib64/libze_intel_gpu.so.1.6.33276", True),
        ("/usr/lib64/libigc.so.2.1.0", True),
        ("/etc/OpenCL/vendors/intel.icd", True),
        ("/usr/lib/firmware/xe/bmg_guc_70.bin.zst", True),
        ("/usr/lib64/libssl.so.3", False),
        ("/usr/lib/firmware/amdgpu/x.bin", False),
    ],
)
def test_the_rpm_s_trigger_knows_drivers(name: str, *, counts: bool) -> None:
    done = subprocess.run([tool("grep"), "-qE", make_rpm.NAMES], input=f"{name}\n", text=True, check=False)

    assert (done.returncode == 0) is counts


# -- on a machine ---------------------------------------------------------------------------------------------------

# What a Debian writes while it runs, whatever is installed.
WANDERS: Final = re.compile(
    r"/(run|proc|sys|dev|tmp)/|/var/(log|tmp|lib/dpkg|lib/systemd|lib/apt|cache/ldconfig|cache/apt|cache/debconf)/"
    r"|/var/lib/(private|misc)$|/etc/ld.so.cache$|/etc/(passwd|group|shadow|gshadow|subuid|subgid)-?$|/etc/.pwd.lock$"
)


def there(machine: hosts.Machine) -> set[str]:
    listed = machine.out("find", "/etc", "/usr", "/var", "/opt", "/home", "/root", "-mount").splitlines()
    return {path for path in listed if not WANDERS.search(path)}


@pytest.mark.timeout(600)
@pytest.mark.parametrize("suite", ["bookworm", "trixie"])
def test_from_installation_to_purge(debs: Path, suite: str, tmp_path: Path) -> None:
    root = debian_tool.root(DEBIAN, suite)
    reason = hosts.why_not(root if debian_tool.is_finished(root) else None)
    if reason:
        lacking(f"no Debian {suite}: {reason}; run: python3 tools/debian.py {DEBIAN} --suite {suite}")
    with hosts.boot(root, {debs: "/srv", tmp_path: "/mnt"}) as machine:
        machine.run("useradd", "--create-home", "alice")
        before = there(machine)
        machine.run("dpkg", "-i", f"/srv/{deb(debs, FIRST).name}")
        # Installed is not wanted.
        assert machine.show("xpucached.service", "UnitFileState") == "disabled"
        assert machine.show("xpucached.service", "ActiveState") == "inactive"
        machine.run("systemctl", "enable", "--now", "xpucached.service")
        answers(machine)
        hears_of_new_gpus(machine)
        may_pause_longer(machine)
        # What differs between the two is Python, systemd and dpkg, not the rest.
        if suite == "bookworm":
            keeps_what_is_running(machine)
        hears_of_drivers(machine, tmp_path, thorough=suite == "bookworm")
        is_upgraded(machine, f"/srv/{deb(debs, SECOND).name}")
        goes_again(machine, before)


def answers(machine: hosts.Machine) -> None:
    """See that it runs, and that who asks is answered, over each socket."""
    sockets = machine.out("systemctl", "list-units", "--plain", "--no-legend", "--type=socket", "xpucached*")
    names = [line.split()[0] for line in sockets.splitlines()]
    assert names
    assert {machine.show(name, "ActiveState") for name in names} == {"active"}
    assert machine.show("xpucached.service", "ActiveState") == "active"
    assert machine.show("xpucached.service", "UnitFileState") == "enabled"
    assert machine.out("xpucachectl", "--system", "version").splitlines()[1].startswith("xpucached ")
    machine.run("xpucachectl", "--system", "status")
    assert machine.out("xpucachectl", "--of", "alice", "-q", "status")
    assert machine.out("systemctl", "list-units", "--state=failed", "--no-legend", "xpucached*") == ""
    # Compiled once, by root: the daemon may not write there.
    assert machine.out("sh", "-c", "find /usr/lib/xpucached/common/xpucached -name '*.pyc' | head -1")
    # As a user, who gets a worker of his own.
    assert machine.out("xpucachectl", "-q", "status", user="alice")
    assert machine.show(f"xpucached-worker@{uid(machine)}.service", "ActiveState") == "active"
    refused = machine.run("xpucachectl", "setup", check=65)
    assert "package of the distribution" in refused.stderr


# No container has udev, nor we a GPU: a made-up one below /sys, and udev itself says what it would do with it.
PLUGGED: Final = """
set -e
mount -t tmpfs none /sys/devices/virtual/mem
cd /sys/devices/virtual/mem
for name in card0 renderD128; do
    mkdir $name
    ln -s ../../../../class/drm $name/subsystem
    printf 'MAJOR=226\\nMINOR=%d\\nDEVNAME=dri/%s\\n' $((${name##*[a-zA-Z]})) $name >$name/uevent
    echo
    echo "$name $(SYSTEMD_DEVICE_VERIFY_SYSFS=0 udevadm test --action=add $PWD/$name 2>&1 | grep -o SYSTEMD_WANTS=.*)"
done
"""


def hears_of_new_gpus(machine: hosts.Machine) -> None:
    """See that the rule of udev is one, and that it means the render node of a GPU that comes."""
    said = machine.out("unshare", "--mount", "sh", "-c", PLUGGED)
    assert [line.strip() for line in said.splitlines() if line] == [
        "card0",
        "renderD128 SYSTEMD_WANTS=xpucached-refresh.service",
    ]
    if systemd_of(machine) >= VERIFIES_RULES:
        machine.run("udevadm", "verify", "/usr/lib/udev/rules.d/80-xpucached.rules")


VERIFIES_RULES: Final = 254
HAS_STEPS: Final = 254


def systemd_of(machine: hosts.Machine) -> int:
    return int(machine.out("systemctl", "--version").split()[1])


def may_pause_longer(machine: hosts.Machine) -> None:
    """See that the drop-in for growing pauses does so where systemd can, and harms nobody where it cannot."""
    unit = "xpucached.service"
    place = f"/run/systemd/system/{unit}.d/pauses.conf"
    machine.run("install", "-D", "--mode=644", "/usr/share/doc/xpucached/examples/longer-pauses.conf", place)
    machine.run("systemctl", "daemon-reload")
    done = machine.run("systemd-analyze", "verify", "--man=no", "--recursive-errors=yes", unit, check=None)
    before = machine.show(unit, "MainPID")
    machine.kill(unit)
    machine.until(lambda: machine.show(unit, "MainPID") not in {before, "0"}, "the daemon to come back")
    if systemd_of(machine) >= HAS_STEPS:
        assert (done.returncode, done.stderr) == (0, "")
        assert machine.show(unit, "RestartUSecNext") not in {"1s", machine.show(unit, "RestartMaxDelayUSec")}
    else:
        unknown = [
            f"Unknown key '{name}' in section [Service], ignoring." for name in ("RestartSteps", "RestartMaxDelaySec")
        ]
        assert [line.partition(": ")[2] for line in done.stderr.splitlines()] == unknown
    machine.run("rm", "-r", place.rpartition("/")[0])
    machine.run("systemctl", "daemon-reload")
    machine.until(lambda: machine.show(unit, "ActiveState") == "active", "the daemon to be ready")


def host(machine: hosts.Machine) -> dict[str, object]:
    found: dict[str, object] = json.loads(machine.out("xpucachectl", "--system", "status", "--json"))["data"]
    return found


def uid(machine: hosts.Machine) -> str:
    return machine.out("id", "-u", "alice")


def keeps_what_is_running(machine: hosts.Machine) -> None:
    """See that installing once more costs nobody anything, and that who disabled it is heard."""
    machine.run("systemctl", "disable", "--now", "xpucached.service")
    machine.run("sh", "-c", "dpkg -i /srv/*test1*.deb")
    assert machine.show("xpucached.service", "UnitFileState") == "disabled"
    machine.run("systemctl", "enable", "--now", "xpucached.service")


def hears_of_drivers(machine: hosts.Machine, place: Path, *, thorough: bool) -> None:
    """See that a driver package wakes it, whatever state it is in, and never waits for it."""
    # Firmware is no library: nothing but our trigger tells of it.
    before = host(machine)["changed"]
    driver(place, "9.0", firmware=True)
    machine.run("dpkg", "-i", "/mnt/driver-9.0.deb")
    machine.until(lambda: host(machine)["changed"] != before, "the daemon to hear of new firmware")
    machine.run("dpkg", "--purge", "pretend-driver")
    if not thorough:
        return
    for number, prepare in enumerate(["true", "systemctl kill -s STOP xpucached.service", "systemctl stop xpucached*"]):
        driver(place, f"1{number}.0")
        machine.run("sh", "-c", prepare)
        machine.run("sh", "-c", "true > /var/log/dpkg.log")
        machine.run("dpkg", "-i", f"/mnt/driver-1{number}.0.deb")
        assert "trigproc xpucached" in machine.read("/var/log/dpkg.log")
        assert machine.out("dpkg-query", "-f", "${db:Status-Abbrev}", "-W", "xpucached") == "ii"
    machine.run("systemctl", "kill", "-s", "KILL", "xpucached.service", check=None)
    machine.run("systemctl", "reset-failed")
    machine.run("sh", "-c", "systemctl start xpucached*.socket xpucached.service")
    machine.run("sh", "-c", "true > /var/log/dpkg.log")
    machine.run("dpkg", "--purge", "pretend-driver")
    assert "trigproc xpucached" in machine.read("/var/log/dpkg.log")


def is_upgraded(machine: hosts.Machine, file: str) -> None:
    """See that a newer version runs, on the state and with the configuration of the older one."""
    machine.run("xpucachectl", "model", "add", "kept", "--", "/bin/true", user="alice")
    machine.run("sh", "-c", "echo '# mine' >>/etc/xpucached/xpucached.toml")
    machine.write("/etc/xpucached/models.d/mine.toml", 'user = "alice"\ncommand = ["/bin/true"]\n')
    before = machine.show("xpucached.service", "MainPID")
    machine.run("dpkg", "-i", file)
    assert SECOND in machine.out("dpkg-query", "-f", "${Version}", "-W", "xpucached")
    assert machine.show("xpucached.service", "MainPID") not in {before, "0"}
    # The new daemon answers before it has read the model files.
    machine.until(
        lambda: set(machine.out("xpucachectl", "-q", "model", "list", user="alice").split()) == {"kept", "mine"},
        "both models",
    )
    assert machine.read("/etc/xpucached/xpucached.toml").endswith("# mine\n")
    assert machine.out("systemctl", "list-units", "--state=failed", "--no-legend", "xpucached*") == ""


def goes_again(machine: hosts.Machine, before: set[str]) -> None:
    """See what is left when it was removed, and when it was purged."""
    machine.run("dpkg", "--remove", "xpucached")
    assert machine.show("xpucached.service", "LoadState") == "not-found"
    machine.run("pgrep", "-f", "/usr/lib/xpucached", check=1)
    left = there(machine) - before
    catalog = f"/var/lib/xpucached-worker/{uid(machine)}/catalog.sqlite"
    assert {catalog, "/etc/xpucached/models.d/mine.toml"} <= left
    assert not [path for path in left if path.startswith("/usr")]
    machine.run("dpkg", "--purge", "xpucached")
    assert there(machine) - before == set()
    assert before - there(machine) == set()
    assert machine.out("find", "/run", "/var/lib/systemd", "-name", "*xpucached*") == ""
    # As the manual says.
    assert machine.out("getent", "passwd", "xpucached").startswith("xpucached:")


HEAVY: Final = re.compile(r"icx-lto|libonnxruntime|libsvml|libimf\.a|libOpenCL|libsycl|libur_|clang$|fpga|emu")
"""What no program asks this driver for, or what is the runtime's."""


def real_driver(place: Path, one: Runtime) -> str:
    """Build a package of a real driver, Intel's for the CPU, from the folder of a runtime; gives its file's name."""
    (version,) = {path.name.partition(".so.")[2] for path in one.lib.glob("libintelocl.so.*")}
    tree = place / f"real-{version}"
    home = tree / "usr/lib/intel-cpu-opencl"
    home.mkdir(parents=True)
    whole: dict[tuple[str, int], str] = {}
    for path in sorted(one.lib.iterdir(), key=lambda path: len(path.name), reverse=True):
        if path.is_file() and not HEAVY.search(path.name):
            # A wheel has a library under each of its names, a package once and links to it.
            same = whole.setdefault((path.name.partition(".so")[0], path.stat().st_size), path.name)
            if same != path.name:
                (home / path.name).symlink_to(same)
                continue
            try:
                (home / path.name).hardlink_to(path.resolve())
            except OSError:
                # The runtimes may lie on another file system.
                shutil.copy2(path, home / path.name)
    icd = tree / "etc/OpenCL/vendors/intel-cpu.icd"
    icd.parent.mkdir(parents=True)
    icd.write_text("/usr/lib/intel-cpu-opencl/libintelocl.so\n")
    (tree / "DEBIAN").mkdir()
    (tree / "DEBIAN/control").write_text(
        f"Package: intel-cpu-opencl\nVersion: {version}\nArchitecture: amd64\n"
        "Maintainer: nobody <nobody@invalid.invalid>\nDescription: a driver\n"
    )
    (tree / "DEBIAN/triggers").write_text("activate-noawait ldconfig\n")
    made = f"intel-cpu-opencl_{version}.deb"
    command = [tool("dpkg-deb"), "--root-owner-group", "-Znone", "-b", str(tree), str(place / made)]
    subprocess.run(command, check=True, capture_output=True)
    shutil.rmtree(tree)
    return made


@pytest.mark.runtime
@pytest.mark.timeout(600)
def test_a_driver_that_the_package_manager_upgrades(
    debs: Path, debian: Path, runtime: Callable[[str], Runtime], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """From a fresh machine to a purge, with real packages of real drivers: nobody says a word to the service."""
    place = tmp_path_factory.mktemp("drivers")
    first, second, third = (real_driver(place, runtime(name)) for name in (*RUNTIMES, "drv2026.0"))
    binds = {debs: "/srv", place: "/mnt", runtime(RUNTIMES[0]).root: f"{PLACE}/{RUNTIMES[0]}"}
    try:
        with hosts.boot(debian, binds) as machine:
            house = House(machine)
            machine.run("dpkg", "-i", f"/srv/{deb(debs, FIRST).name}", f"/mnt/{first}")
            house.settle(excluded=("bob", "carol", "dora", "eve"))
            machine.write("/etc/systemd/system/xpucached-worker@.service.d/young.conf", YOUNG)
            machine.write("/etc/systemd/system/xpucached.service.d/patient.conf", PATIENT)
            is_warm_before_it_serves(house)
            outlives_its_drivers(house, second, third)
            machine.run("systemctl", "disable", "--now", "xpucached")
            machine.run("dpkg", "--purge", "xpucached")
            left = machine.out("find", "/etc", "/usr", "/var", "/run", "-name", "*xpucached*", "-not", "-path", OURS)
            assert left == ""
            # The caches are their owners', and a driver is not ours.
            assert min(len(drivers_on_disk(house, user)) for user in ("alice", "llm")) == 1
            assert machine.out("ls", "/usr/lib/intel-cpu-opencl")
    finally:
        shutil.rmtree(place)


# What was made a moment ago is for ten minutes safe from eviction; that is tested elsewhere.
YOUNG: Final = "[Service]\nEnvironment=XPUCACHED_POLICY_GRACE=0s\n"
# What stands still for as long as a package takes must not be ended for it.
PATIENT: Final = "[Service]\nWatchdogSec=0\n"
OURS: Final = "/etc/systemd/*.d*"  #: drop-ins of the test


def is_warm_before_it_serves(house: House) -> None:
    """See that users' and services' caches are known, and that models are warm before they are served."""
    machine = house.machine
    house.run_app("alice", "/home/alice/.cache/libsycl_cache")
    house.declare()
    machine.run("systemctl", "enable", "--now", "xpucached")
    machine.run("systemctl", "enable", "served")
    house.until("llm", warm=2, cold=0)
    machine.until(lambda: len(drivers(house, "alice")) == 1, "alice's cache to be known")
    (entries,) = drivers(house, "llm").values()
    assert entries >= 3
    machine.run("systemctl", "stop", "xpucached")
    machine.run("rm", "-r", "/home/llm/.cache/xpucached")
    machine.reboot()
    machine.until(lambda: machine.show("served.service", "ActiveState") == "active", "the service")
    assert machine.read("/home/llm/found").strip() == str(entries)


def outlives_its_drivers(house: House, second: str, third: str) -> None:
    """See that models are warm again after each, and that the first one's entries go when there is a third."""
    machine = house.machine
    known = {user: drivers(house, user) for user in ("alice", "llm")}

    def new(user: str) -> set[str]:
        return drivers(house, user).keys() - known[user].keys()

    # All that is ours stands still while the package is installed, and the package manager waits for nothing of it.
    awake = [one["uid"] for one in house.users().values() if one["state"] == "awake"]
    ours = ["xpucached.service", *(f"xpucached-worker@{uid}.service" for uid in awake)]
    machine.run("systemctl", "kill", "--signal=STOP", *ours)
    machine.run("dpkg", "-i", f"/mnt/{second}")
    assert machine.out("dpkg-query", "-f", "${db:Status-Abbrev}", "-W", "intel-cpu-opencl", "xpucached") == "ii ii"
    assert [len(drivers_on_disk(house, user)) for user in known] == [1, 1]
    assert machine.out("ps", "-o", "stat=", "-p", machine.show("xpucached.service", "MainPID")).startswith("T")
    machine.run("systemctl", "kill", "--signal=CONT", *ours)
    machine.until(lambda: all(len(drivers(house, user)) == 2 for user in known), "the second generation")
    house.until("llm", warm=2, cold=0)
    # The old generation is kept: who has to go back finds it warm.
    for user, before in known.items():
        assert before.items() <= drivers(house, user).items()
    machine.run("dpkg", "-i", f"/mnt/{third}")
    machine.until(lambda: all(len(new(user)) == 2 for user in known), "the third generation")
    machine.until(lambda: all(drivers(house, user).keys() == new(user) for user in known), "the first to go")
    house.until("llm", warm=2, cold=0)
    assert house.events("evicted")
    # Nobody wants to go back any more: then one generation is enough.
    machine.write("/etc/systemd/system/xpucached-worker@.service.d/young.conf", f"{YOUNG}{NONE_KEPT}")
    machine.run("systemctl", "daemon-reload")
    machine.run("systemctl", "restart", "xpucached")
    machine.until(lambda: all(len(drivers(house, user)) == 1 for user in known), "the second generation to go")
    house.until("llm", warm=2, cold=0)


NONE_KEPT: Final = "Environment=XPUCACHED_POLICY_KEEP_DRIVER_GENERATIONS=0\n"


def drivers_on_disk(house: House, user: str) -> set[str]:
    """Return the directories of a user's store that stand for a device with its driver."""
    found = house.machine.out("sh", "-c", f"ls -d /home/{user}/.cache/*/[0-9]* /home/{user}/.cache/*/sycl/[0-9]*; true")
    return set(found.split())


def test_without_a_python_that_fits_it_says_so(tmp_path: Path) -> None:
    packed._launchers(tmp_path, ["3.1", "3.2"])
    done = subprocess.run([tmp_path / "usr/bin/xpucachectl"], capture_output=True, text=True, check=False)

    assert done.returncode == 69
    assert "made for Python 3.1 or 3.2, and none of them is here" in done.stderr
    assert os.access(tmp_path / "usr/bin/xpucached", os.X_OK)
