"""The package for Debian, on a Debian 12 and a Debian 13 without a network: from its installation to its purge."""

from __future__ import annotations

import hashlib
import importlib.util
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
from tests.support import documents, driver_packages, hosts
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
        make_deb.build(wheel, WHEELS, place, version, ("-Znone",))
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
    again = make_deb.build(wheel, WHEELS, tmp_path, FIRST, ("-Znone",))

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
    for page in ("manifest.json", "index.html", "start.js", "page.js", "page.css"):
        assert f"./usr/share/cockpit/xpucached/{page}" in names
    for path in (REPOSITORY / "systemd").glob("*.s*"):
        assert f"./usr/lib/systemd/system/{path.name}" in names
    assert not [name for name in names if re.search(r"/(tests?|__pycache__)/", name)]


def test_lintian_finds_nothing_serious(debs: Path, wheel: Path, tmp_path: Path) -> None:
    lintian = tool("lintian")
    assert debs.is_dir()
    # To it, one that is not compressed is none to be delivered.
    delivered = make_deb.build(wheel, WHEELS, tmp_path, FIRST, ("-Zgzip", "-z1"))
    done = subprocess.run(
        [lintian, "--allow-root", "--fail-on=error", delivered],
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
    return make_rpm.build(wheel, WHEELS, tmp_path_factory.mktemp("rpm"), "0.0.1", "w.ufdio")


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
# As in an upgrade, the scripts of what was there come after those of what comes.
rpm --root=/mnt/root --nodeps --nosignature -U --replacepkgs "$2"
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
        asks_whether_an_account_has_expired(machine)
        explains_its_journal(machine)
        # What docs/containers.md tells who has his home elsewhere.
        assert machine.out("unshare", "--mount", "sh", "-c", TIDIED) == "/var/tmp/xpucached-1234/catalog.sqlite"
        hears_of_new_gpus(machine)
        may_pause_longer(machine)
        # What differs between the two is Python, systemd and dpkg, not the rest.
        if suite == "bookworm":
            keeps_what_is_running(machine)
        hears_of_drivers(machine, tmp_path, thorough=suite == "bookworm")
        is_upgraded(machine, f"/srv/{deb(debs, SECOND).name}")
        if suite == "bookworm":
            waits_for_no_worker_for_ever(machine, f"/srv/{deb(debs, SECOND).name}")
        goes_again(machine, before)


def asks_whether_an_account_has_expired(machine: hosts.Machine) -> None:
    """See that PAM is asked by what the package brings; systemd takes no for no, and no answer for a failure."""
    unit, policy = f"xpucached-worker@{uid(machine)}.service", "/etc/pam.d/xpucached-worker"
    machine.run("systemctl", "stop", unit)
    machine.run("chage", "--expiredate", "2020-01-01", "alice")
    assert "lets nothing be run" in machine.run("xpucachectl", "--of", "alice", "status", check=65).stderr
    assert "denied" in machine.out("xpucachectl", "--system", "status")
    assert machine.out("systemctl", "list-units", "--state=failed", "--no-legend", "xpucached*") == ""
    machine.run("chage", "--expiredate", "-1", "alice")
    machine.write(policy, "account required pam_that_is_not_here.so\n")
    machine.run("systemctl", "start", unit, check=1)
    assert "PAM cannot say" in machine.journal("--unit", unit)
    machine.run("systemctl", "stop", unit)
    machine.run("rm", policy)
    machine.run("systemctl", "start", unit)
    assert machine.out("xpucachectl", "--of", "alice", "-q", "status")


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
    # Where docs/bundles.md puts keys, and what is revoked.
    assert machine.out("stat", "-c", "%U %a", "/etc/xpucached/trust.d") == "root 755"
    # Compiled once, by root: the daemon may not write there.
    assert machine.out("sh", "-c", "find /usr/lib/xpucached/common/xpucached -name '*.pyc' | head -1")
    # Nobody could add what signs and reads bundles: the package's Python looks nowhere else.
    machine.run("xpucachectl", "bundle", "keygen", "/run/release")
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


# In a place that looks like it: what runs has its own there.
TIDIED: Final = """
set -e
mount -t tmpfs none /var/tmp
mkdir /var/tmp/xpucached-1234 /var/tmp/other
touch /var/tmp/xpucached-1234/catalog.sqlite /var/tmp/other/file
echo 'q /var/tmp 1777 root root 0' >/tmp/aged.conf
systemd-tmpfiles --clean /usr/lib/tmpfiles.d/xpucached.conf /tmp/aged.conf
rm /tmp/aged.conf
find /var/tmp -type f
"""


def explains_its_journal(machine: hosts.Machine) -> None:
    """See that the journal says what a message means, and what to do."""
    said = machine.journal("-x", "XPUCACHED_EVENT=started")
    assert "Subject: xpucached is ready" in said
    assert "How the host stands: xpucachectl status" in said


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


PAUSE: Final = "/run/systemd/system/xpucached.service.d"
HELD: Final = "/home/mallory/held.py"
HOLDING: Final = """
import signal, socket, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
systemd = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
while True:
    systemd.sendto(b"READY=1\\nWATCHDOG=1\\nEXTEND_TIMEOUT_USEC=86400000000", "/run/systemd/notify")
    time.sleep(1)
"""


def waits_for_no_worker_for_ever(machine: hosts.Machine, file: str) -> None:
    """See that it is upgraded where a user took over his worker, a program of his, which asks for a day to end."""
    machine.run("useradd", "--create-home", "mallory")
    machine.write(HELD, HOLDING)
    unit = f"xpucached-worker@{machine.out('id', '-u', 'mallory')}.service"
    folder = f"/run/systemd/system/{unit}.d"
    machine.write(f"{folder}/held.conf", f"[Service]\nExecStart=\nExecStart=python3 -I {HELD}\n")
    machine.run("systemctl", "daemon-reload")
    machine.run("systemctl", "restart", unit)
    machine.run("rm", "-r", folder)
    # Nor does one stay away that has died, and waits for its next start, when the upgrade comes.
    machine.write(f"{PAUSE}/pause.conf", "[Service]\nRestartSec=10min\n")
    machine.run("systemctl", "daemon-reload")
    machine.kill("xpucached.service")
    machine.until(lambda: machine.show("xpucached.service", "SubState") == "auto-restart", "its death")
    machine.run("rm", "-r", PAUSE)
    machine.run("dpkg", "-i", file)
    machine.run("pgrep", "-f", HELD, check=1)
    assert machine.show("xpucached.service", "ActiveState") == "active"
    machine.run("userdel", "--remove", "mallory")
    machine.run("systemctl", "reset-failed")


def goes_again(machine: hosts.Machine, before: set[str]) -> None:
    """See what is left when it was removed, and when it was purged."""
    machine.run("dpkg", "--remove", "xpucached")
    assert machine.show("xpucached.service", "LoadState") == "not-found"
    machine.run("pgrep", "-f", "/usr/lib/xpucached", check=1)
    left = there(machine) - before
    catalog = f"/var/lib/xpucached-worker/{uid(machine)}/catalog.sqlite"
    assert {catalog, "/etc/xpucached/models.d/mine.toml"} <= left
    assert not [path for path in left if path.startswith("/usr")]
    # What a user has mounted in a directory of his own keeps nobody from purging it, and is not emptied.
    workers = "/var/lib/xpucached-worker"
    mounted = f"{workers}/{uid(machine)}/mounted"
    machine.run("sh", "-c", f"mkdir {mounted} && mount -t tmpfs none {mounted} && touch {mounted}/precious")
    machine.run("dpkg", "--purge", "xpucached")
    assert machine.out("find", workers, "-type", "f").split() == [f"{mounted}/precious"]
    machine.run("sh", "-c", f"umount {mounted} && rm -r {workers}")
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
    home = "usr/lib/intel-cpu-opencl"
    files: dict[str, Path | str | bytes] = {}
    whole: dict[tuple[str, int], str] = {}
    for path in sorted(one.lib.iterdir(), key=lambda path: len(path.name), reverse=True):
        if path.is_file() and not HEAVY.search(path.name):
            # A wheel has a library under each of its names, a package once and links to it.
            same = whole.setdefault((path.name.partition(".so")[0], path.stat().st_size), path.name)
            files[f"{home}/{path.name}"] = path if same == path.name else same
    files["etc/OpenCL/vendors/intel-cpu.icd"] = f"/{home}/libintelocl.so\n".encode()
    triggers = "activate-noawait ldconfig\n"
    return driver_packages.deb_of_files(place, "intel-opencl-icd", version, files, triggers).name


def offer(place: Path, *files: str) -> None:
    """Let a folder be where a package manager finds these packages, and no others."""
    (place / "offered").mkdir(exist_ok=True)
    entries = []
    for file in files:
        if not (place / "offered" / file).exists():
            (place / "offered" / file).hardlink_to(place / file)
        path = place / file
        fields = subprocess.run([tool("dpkg-deb"), "-f", path], capture_output=True, text=True, check=True).stdout
        with path.open("rb") as stream:
            digest = hashlib.file_digest(stream, "sha256").hexdigest()
        entries.append(f"{fields}Filename: ./{file}\nSize: {path.stat().st_size}\nSHA256: {digest}\n")
    (place / "offered/Packages").write_text("\n".join(entries))


DAY: Final = "docs/operations.md"
EXAMPLES: Final = REPOSITORY / "examples/driver-update"
SERVED: Final = """
[Unit]
Wants=xpucached-prewarm@llama.service
After=xpucached-prewarm@llama.service

[Service]
Type=oneshot
RemainAfterExit=yes
User=llm
ExecStart=/bin/sh -c 'find /home/llm/.cache/xpucached/sycl -name "*.bin" | wc -l >/home/llm/found'

[Install]
WantedBy=multi-user.target
"""


@pytest.mark.runtime
@pytest.mark.timeout(900)
def test_the_administrator_s_day(
    debs: Path, debian: Path, runtime: Callable[[str], Runtime], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """From a fresh machine to a purge, as the manual says it, with real packages of real drivers."""
    place = tmp_path_factory.mktemp("drivers")
    older, first, second, third = (real_driver(place, runtime(name)) for name in ("drv2025.0", *RUNTIMES, "drv2026.0"))
    loader = driver_packages.deb(place, place / "empty", "libze-intel-gpu1", "1").name
    offer(place, first, loader)
    own = f"{PLACE}/{RUNTIMES[0]}"
    binds = {debs: "/srv", place: "/media", runtime(RUNTIMES[0]).root: own, REPOSITORY / "systemd": "/opt/clone"}
    try:
        with hosts.boot(debian, {**binds, **hosts.needs()}) as machine:
            house = House(machine)
            typist = documents.Typist(machine, "/root/day")
            machine.run("sh", "-c", f"mkdir /root/day && cd /root/day && ln -s /srv/{deb(debs, FIRST).name} .")
            machine.run("ln", "-s", "/opt/clone", "/root/day/systemd")
            machine.write("/etc/apt/sources.list", "deb [trusted=yes] file:/media/offered ./\n")
            machine.run("apt-get", "-qq", "update")
            machine.run("apt-get", "-qq", "install", "-y", "intel-opencl-icd")
            is_installed(house, typist)
            a_user_looks_after_theirs(house, typist)
            has_models_of_two_users_and_a_service(house, typist)
            offer(place, second, loader)
            is_warm_after_an_upgrade(house, typist)
            makes_entries_for_a_folder(house, typist, older, loader)
            offer(place, second, third, loader)
            is_ready_before_an_upgrade(house)
            waits_in_other_ways(house)
            is_warm_before_it_serves(house, first)
            is_tended(house, typist)
            typist.type(DAY, "The end", 0)
            # Workers may take some moments longer.
            machine.until(lambda: machine.run("pgrep", "-f", "xpucache[d]", check=None).returncode == 1, "the end")
            assert checked(house)[0] == 3
            typist.type(DAY, "The end", 1)
            machine.run("pgrep", "-f", "xpucache[d]", check=1)
            left = machine.out("find", "/etc", "/usr", "/var", "/run", "-name", "*xpucached*", "-not", "-path", OURS)
            assert left == ""
            # The caches are their owners', and a driver is not ours.
            assert machine.out("ls", "/usr/lib/intel-cpu-opencl")
            assert drivers_on_disk(house, "alice")
            assert documents.to_type() == typist.typed
    finally:
        shutil.rmtree(place)


# What was made a moment ago is for ten minutes safe from eviction; that is tested elsewhere.
YOUNG: Final = "[Service]\nEnvironment=XPUCACHED_POLICY_GRACE=0s\n"
# What stands still for as long as a package takes must not be ended for it.
PATIENT: Final = "[Service]\nWatchdogSec=0\n"
OURS: Final = "/etc/systemd/*.d*"  #: drop-ins of the test


def checked(house: House) -> tuple[int, str]:
    done = house.machine.run("xpucachectl", "status", "--check", check=None)
    return done.returncode, done.stdout


def is_installed(house: House, typist: documents.Typist) -> None:
    machine = house.machine
    typist.type(DAY, "On Debian")
    typist.type(DAY, "As the host's service")
    machine.until(lambda: checked(house)[0] == 1, lambda: checked(house)[1])
    assert "no models" in checked(house)[1]
    # Whoever moves in now is known at once; dora runs a daemon of her own.
    house.settle(excluded=("carol", "dora", "eve"))
    machine.write("/etc/systemd/system/xpucached-worker@.service.d/young.conf", YOUNG)
    machine.write("/etc/systemd/system/xpucached.service.d/patient.conf", PATIENT)
    machine.run("systemctl", "daemon-reload")
    machine.run("systemctl", "reload", "xpucached")


def a_user_looks_after_theirs(house: House, typist: documents.Typist) -> None:
    """See that what users read works as it stands, with a daemon of their own."""
    machine = house.machine
    machine.run("loginctl", "enable-linger", "dora")
    machine.write("/home/dora/app.py", 'import os\nos.execv("/usr/local/bin/app", ["app"])\n')
    machine.run("install", "-d", "-o", "dora", "/mnt/fast")
    said = typist.type("README.md", "Five minutes to a warm model", user="dora")
    # Its daemon may have done it by itself before that was typed.
    assert re.search(r"3 used and none compiled|warm already", said), said
    typist.type(DAY, "As a user's service", user="dora")
    assert "warm already" in typist.type(DAY, "The first model", user="dora")
    assert "llama" in typist.type("docs/advice.md", "Why a model is cold or slow", user="dora")
    typist.type(DAY, "Moving to another disk", user="dora")
    assert machine.out("find", "/mnt/fast/xpucached/sycl", "-name", "*.bin")
    # Root reaches that daemon, and it is no other one's.
    assert "llama" in house.ctl("--of", "dora", "model", "list")
    machine.run("systemctl", "--user", "disable", "--now", "xpucached.service", user="dora", session=True)
    typist.type(DAY, "Watching")
    assert machine.show("xpucached-watch.service", "ActiveState") == "active"
    machine.run("systemctl", "disable", "--now", "xpucached-watch")


def has_models_of_two_users_and_a_service(house: House, typist: documents.Typist) -> None:
    machine = house.machine
    for user in ("alice", "bob"):
        house.run_app(user, f"/home/{user}/.cache/xpucached/sycl")
        house.ctl("model", "add", "hello", "--", "/usr/local/bin/app", user=user)
        house.ctl("prewarm", "hello", user=user)
    assert "llama" in typist.type(DAY, "A service's first model")
    for user in ("alice", "bob", "llm"):
        house.until(user, warm=1, cold=0)
    machine.until(lambda: checked(house)[0] == 0, lambda: checked(house)[1])
    assert all(user in house.ctl("status") for user in ("alice", "bob", "llm"))
    machine.write("/etc/systemd/system/served.service", SERVED)
    machine.run("systemctl", "enable", "served")


def programs(house: House, user: str) -> set[str]:
    """Return the compiled programs in a user's managed store."""
    return set(house.machine.out("find", f"/home/{user}/.cache/xpucached/sycl", "-name", "*.bin").splitlines())


def compiles_nothing(house: House, *users: str) -> None:
    for user in users:
        before = programs(house, user)
        house.run_app(user, f"/home/{user}/.cache/xpucached/sycl")
        assert programs(house, user) == before


def is_warm_after_an_upgrade(house: House, typist: documents.Typist) -> None:
    """See that one line waits for it; and that the package manager waits for nothing of ours."""
    machine = house.machine
    known = {user: drivers(house, user) for user in ("alice", "bob", "llm")}
    awake = [one["uid"] for one in house.users().values() if one["state"] == "awake"]
    assert awake
    workers = [f"xpucached-worker@{uid}.service" for uid in awake]
    ours = ["xpucached.service", *workers]
    machine.run("apt-get", "-qq", "update")
    machine.run("systemctl", "kill", "--signal=STOP", *ours)
    machine.run("apt-get", "-qq", "install", "-y", "intel-opencl-icd")
    assert machine.out("dpkg-query", "-f", "${db:Status-Abbrev}", "-W", "intel-opencl-icd", "xpucached") == "ii ii"
    assert machine.out("ps", "-o", "stat=", "-p", machine.show("xpucached.service", "MainPID")).startswith("T")
    # Whose worker has not looked at the new driver yet is not known to be warm.
    machine.run("systemctl", "kill", "--signal=CONT", "xpucached.service")
    machine.until(lambda: checked(house)[0] == 3, lambda: f"nobody to know it, not {checked(house)}")
    machine.run("systemctl", "kill", "--signal=CONT", *workers)
    said = typist.type(DAY, "Waiting for it in a script")
    assert all(re.search(rf"^{user} +warm", said, re.MULTILINE) for user in known), said
    is_warm_with_nothing_compiled(house, *known)
    # The old generation is kept: who has to go back finds it warm.
    assert all(before.items() <= drivers(house, user).items() for user, before in known.items())


def is_warm_with_nothing_compiled(house: House, *users: str) -> None:
    """See that a script's line ends well, and that neither a model's last run nor its program compiled anything."""
    said = json.loads(house.machine.out("xpucachectl", "driver-changed", "--wait", "--json"))["data"]
    stands = {one["user"]: (one["state"], one["warm"], one["cold"]) for one in said["users"]}
    assert [stands[user] for user in users] == [("warm", 1, 0)] * len(users)
    for user in users:
        assert passes(house, user) == [(0, 3)]
    compiles_nothing(house, *users)
    assert checked(house)[0] == 0


def passes(house: House, user: str) -> list[tuple[int, int]]:
    """Return what each pass of the newest run of a user's model compiled, and what it used."""
    newest = json.loads(house.ctl("--of", user, "runs", "--json"))["data"][0]
    return [(one["created"], one["used"]) for one in newest["passes"]]


def makes_entries_for_a_folder(house: House, typist: documents.Typist, driver: str, loader: str) -> None:
    """See that entries are made for a driver that lies in a folder."""
    house.machine.run("ln", "-sf", f"/media/{driver}", f"/media/{loader}", "/root/day")
    typist.type(DAY, "Other drivers, other GPUs")
    assert [len(drivers(house, user)) for user in ("alice", "bob", "llm")] == [3, 3, 3]


def is_ready_before_an_upgrade(house: House) -> None:
    """See that what was made for packages that were downloaded is there when they are installed, and is all of it."""
    machine = house.machine
    known = {user: drivers(house, user) for user in ("alice", "bob", "llm")}
    # Of a folder of this host nothing would be downloaded.
    machine.write("/etc/apt/sources.list", "deb [trusted=yes] copy:/media/offered ./\n")
    machine.run("apt-get", "-qq", "update")
    installed = machine.out("dpkg-query", "-W", "-f", "${Version}", "intel-opencl-icd")
    machine.run("apt-get", "-qq", "install", "-y", "--download-only", "intel-opencl-icd")

    def ready() -> bool:
        return all("'ready'" in str(house.users()[user]["ahead"]) for user in known)

    machine.until(ready, lambda: f"readiness, not {[house.users()[user]['ahead'] for user in known]}")
    assert machine.out("dpkg-query", "-W", "-f", "${Version}", "intel-opencl-icd") == installed
    said = house.ctl("status")
    assert "ready for driver" in said
    assert all(re.search(rf"not installed yet: .*{user}", said) for user in known), said
    # What was unpacked is gone; carol is not looked after, and dora, who has nothing to compile, unpacked nothing.
    assert machine.out("find", "/var/lib/xpucached-worker", "-name", "unpacked-*") == ""
    ahead = {user: drivers(house, user) for user in known}
    assert all(ahead[user].keys() > known[user].keys() for user in known)
    for one in EXAMPLES.iterdir():
        machine.put(one, f"/root/{one.name}")
    said = machine.out("/root/driver-update.sh", "intel-opencl-icd")
    assert machine.out("dpkg-query", "-W", "-f", "${Version}", "intel-opencl-icd") > installed
    assert all(re.search(rf"^{user} +warm", said, re.MULTILINE) for user in known), said
    is_warm_with_nothing_compiled(house, *known)
    assert all(ahead[user].keys() >= drivers(house, user).keys() for user in known)
    # One older generation is kept; what was made for a driver that never came stays for a week.
    machine.until(lambda: all(len(drivers(house, user)) == 3 for user in known), "the first generation to go")
    assert house.events("evicted")


def waits_in_other_ways(house: House) -> None:
    """See that a unit and a play wait for the same, and that the play fails with a model."""
    machine = house.machine
    machine.run("mv", "/root/caches-warm.service", "/etc/systemd/system/")
    machine.write("/etc/systemd/system/llm.service", "[Service]\nType=oneshot\nExecStart=true\n")
    machine.run("systemctl", "daemon-reload")
    machine.run("systemctl", "enable", "caches-warm")
    machine.run("systemctl", "start", "llm")
    assert machine.show("caches-warm.service", "ExecMainStatus") == "0"
    assert float(machine.show("caches-warm.service", "ExecMainExitTimestampMonotonic")) <= float(
        machine.show("llm.service", "ExecMainStartTimestampMonotonic")
    )
    if importlib.util.find_spec("ansible") is None:
        lacking("ansible-core is not installed: what a play does is not known")
    machine.run("python3", "-m", "venv", "--without-pip", "/opt/ansible")
    python = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    machine.write(f"/opt/ansible/lib/{python}/site-packages/needs.pth", "/opt/needs\n")
    assert play(machine).returncode == 0
    # A model that cannot be warmed ends the play.  It is its user's to repair, so to monitoring it is a warning.
    house.ctl("model", "add", "bad", "--", "/bin/false", user="bob")
    house.ctl("prewarm", "bad", user="bob", check=1)
    failed = play(machine)
    assert failed.returncode == 2, failed.stdout + failed.stderr
    assert "Kernel caches are warm for it" in failed.stdout
    assert checked(house)[0] == 1
    house.ctl("model", "remove", "bad", user="bob")
    machine.until(lambda: checked(house)[0] == 0, lambda: checked(house)[1])


def play(machine: hosts.Machine) -> subprocess.CompletedProcess[str]:
    """Run the play on the machine itself; its packages are there already, and apt's module needs a library of apt's."""
    ansible = ["/opt/ansible/bin/python", "-m", "ansible", "playbook", "-c", "local", "-i", "localhost,"]
    given = ["-e", "ansible_python_interpreter=/usr/bin/python3", "-e", "caches_timeout=30s", "--skip-tags", "packages"]
    return machine.run("env", "LC_ALL=C.UTF-8", *ansible, *given, "/root/driver-update.yml", check=None)


def is_warm_before_it_serves(house: House, earlier: str) -> None:
    """See that a serving unit starts warm after a boot with another driver, its model replayed and not compiled."""
    machine = house.machine
    known = {one["ref"] for one in house.entries("llm")}
    machine.run("systemctl", "stop", "xpucached")
    assert checked(house)[0] == 3
    # As in the build of an image: a hook fails for nobody, and who waits is told that nobody is there.
    house.ctl("driver-changed", "--no-wait")
    house.ctl("driver-changed", "--wait", check=69)
    machine.run("dpkg", "-i", "--force-downgrade", f"/media/{earlier}")
    # What was downloaded would be newer than this, and prepared for once more.
    machine.run("apt-get", "clean")
    machine.reboot()
    machine.until(lambda: machine.show("served.service", "ActiveState") == "active", "the service")
    assert machine.show("xpucached-prewarm@llama.service", "Result") == "success"
    house.until("llm", warm=1, cold=0)
    # One short run proved it, and what it used was there before: made by a replay, all of it.
    assert passes(house, "llm") == [(0, 3)]
    made = [one["origin"] for one in house.entries("llm") if one["ref"] not in known]
    assert made == ["rebuilt"] * 3
    assert int(machine.read("/home/llm/found")) > 3


def is_tended(house: House, typist: documents.Typist) -> None:
    """See the rest of the day: looking, making room, backing up and restoring, and a user who leaves."""
    machine = house.machine
    typist.type(DAY, "Looking after it")
    typist.type(DAY, "The disk is full")
    typist.type(DAY, "Backing up, restoring", 0)
    # A daemon that has just started may not have met everybody.
    machine.until(lambda: "alice" in house.users(), "alice to be known")
    house.ctl("--of", "alice", "model", "remove", "hello")
    assert re.search(r"^alice +hello", typist.type(DAY, "Backing up, restoring", 1), re.MULTILINE)
    # What a user cannot repair is not said before it is so: a model of the host's that fails is critical.
    machine.write("/etc/xpucached/models.d/broken.toml", 'user = "llm"\ncommand = ["/bin/false"]\n')
    house.ctl("prewarm", "broken", check=1)
    machine.until(lambda: checked(house)[0] == 2, lambda: checked(house)[1])
    machine.run("rm", "/etc/xpucached/models.d/broken.toml")
    # Nor is all said to be warm where a file is refused, so that a model may be missing.
    machine.write("/etc/xpucached/models.d/refused.toml", 'user = "llm"\n')
    machine.until(lambda: checked(house)[0] == 3, lambda: checked(house)[1])
    machine.run("rm", "/etc/xpucached/models.d/refused.toml")
    machine.until(lambda: checked(house)[0] == 0, lambda: checked(house)[1])
    house.ctl("--of", "bob", "status")
    said = typist.type(DAY, "A user leaves")
    assert "alice" in said
    machine.until(lambda: "bob" not in house.users(), "him to go")


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
