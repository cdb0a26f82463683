"""A throw-away Debian whose first process is a real systemd, for tests.

    with hosts.boot(root, binds={Path("/opt/rt"): "/opt/rt"}) as machine:
        machine.put(Path("x.service"), "/etc/systemd/system/x.service")
        machine.run("systemctl", "start", "x.service")

It is a container of systemd-nspawn on an overlay, so tests never change the root that ``tools/debian.py`` made.  All of
it (the overlay's upper half is in memory) hangs on one process that is the first of its own process namespace and has
its own mount namespace: when that one ends, the kernel takes everything with it.  It ends when its standard input does,
which is a pipe of ours: so nothing stays behind, however the tests end.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final, Self

import psutil

# This file is a program, too, which finds nothing else of the tests.
REPOSITORY: Final = Path(__file__).resolve().parents[2]


if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

PATIENCE: Final = 150.0
LONGEST_NAP: Final = 1.0

RUNNING: Final[set[int]] = set()
"""The processes on which machines hang; what is below them is a machine's, and ends with it."""

SUITES: Final = {(3, 11): "bookworm", (3, 13): "trixie"}
"""Which Debian has the Python that runs the tests: the machine borrows what is installed for it."""

_CGROUP: Final = "xpucached-test"
_REBOOTED: Final = 133  # how nspawn says that the machine wants to start again

# Without these, which nspawn refuses, DeviceAllow= and IPAddressDeny= would do nothing, without a word.
_CALLS: Final = "bpf fanotify_init fanotify_mark open_by_handle_at name_to_handle_at"
_CAPABILITIES: Final = "CAP_BPF,CAP_PERFMON,CAP_IPC_LOCK,CAP_SYSLOG"

_VARIABLES: Final = {
    "HOME": "/root",
    "LC_ALL": "C.UTF-8",
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "SYSTEMD_COLORS": "0",
    "SYSTEMD_PAGER": "",
}


class MachineError(AssertionError):
    """The machine did not do what the test needs of it."""


def why_not(root: Path | None) -> str:
    """Return why no machine can be booted here; empty if one can."""
    if os.geteuid() != 0:
        return "only root can boot a container"
    missing = [
        f"{tool} (apt-get install --no-install-recommends {package})"
        for tool, package in (
            ("systemd-nspawn", "systemd-container"),
            ("nsenter", "util-linux"),
            ("unshare", "util-linux"),
        )
        if shutil.which(tool) is None
    ]
    if missing:
        return f"missing: {', '.join(missing)}"
    if sys.version_info[:2] not in SUITES:
        known = " or ".join(f"{major}.{minor}" for major, minor in SUITES)
        return f"this is Python {sys.version_info[0]}.{sys.version_info[1]}; no Debian has that one, but {known}"
    if root is None or not root.is_dir():
        return f"there is no root of a Debian {SUITES[sys.version_info[:2]]}"
    return ""


@dataclass(slots=True)
class Machine:
    """One running machine."""

    root: Path
    binds: Mapping[Path, str] = field(default_factory=dict)  #: what of this host is seen there, and where; read-only
    _process: subprocess.Popen[bytes] | None = None
    _leader: int = 0
    _log: IO[bytes] = field(default_factory=tempfile.TemporaryFile)

    # -- life ---------------------------------------------------------------------------------------------------------

    def start(self) -> Self:
        """Boot, and wait until nothing is left to be started."""
        asked = {"root": str(self.root), "binds": [f"{path}:{there}" for path, there in self.binds.items()]}
        command = ["unshare", "--mount", "--pid", "--fork", "--kill-child=KILL", "--mount-proc", "--propagation=slave"]
        self._process = subprocess.Popen(
            [*command, sys.executable, __file__, json.dumps(asked)],
            stdin=subprocess.PIPE,
            stdout=self._log,
            stderr=self._log,
            cwd="/",
            start_new_session=True,
        )
        RUNNING.add(self._process.pid)
        self._booted(0)
        return self

    def stop(self) -> None:
        """Take the power away."""
        if self._process is not None:
            pid = self._process.pid
            if self._process.stdin is not None:
                self._process.stdin.close()
            try:
                self._process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None
            RUNNING.discard(pid)
        self._log.close()
        _sweep()

    def reboot(self) -> None:
        """Shut down, boot again, and wait until nothing is left to be started."""
        before = self._leader
        self.run("systemctl", "reboot", check=None)
        self._booted(before)

    def _booted(self, before: int) -> None:
        def up() -> bool:
            if self._process is None or self._process.poll() is not None:
                raise MachineError(f"the machine ended while it booted:\n{self.console()}")
            leader = self._find_leader()
            if not leader or leader == before:
                return False
            self._leader = leader
            done = self.run("systemctl", "is-system-running", check=None)
            return done.stdout.strip() in {"running", "degraded"}

        self.until(up)

    def _find_leader(self) -> int:
        """Return the machine's first process, as it is numbered here."""
        assert self._process is not None
        with contextlib.suppress(psutil.Error):
            for child in psutil.Process(self._process.pid).children(recursive=True):
                with contextlib.suppress(psutil.Error, OSError):
                    lines = Path(f"/proc/{child.pid}/status").read_text().splitlines()
                    numbers = next(line for line in lines if line.startswith("NSpid:")).split()[1:]
                    # Here, in the namespace of the one on which all hangs, and in the machine's.
                    if len(numbers) > 2 and numbers[-1] == "1" and child.name() == "systemd":
                        return int(child.pid)
        return 0

    # -- work inside --------------------------------------------------------------------------------------------------

    def command(self, *words: object, user: str = "", session: bool = False) -> list[str]:
        """Return the words that run a command there, as root or a user; with ``session`` as after a login."""
        inside = [str(word) for word in words]
        if session:
            options = ["--quiet", "--collect", "--wait", "--pipe", f"--uid={user}", "-pPAMName=login"]
            inside = ["systemd-run", *options, "-pWorkingDirectory=~", "--", *inside]
        elif user:
            inside = ["runuser", "-u", user, "--", "env", f"HOME=/home/{user}", "--chdir=/", *inside]
        spaces = ["--mount", "--uts", "--ipc", "--net", "--pid", "--cgroup", "--root", "--wd"]
        variables = [f"{name}={value}" for name, value in _VARIABLES.items()]
        return ["nsenter", f"--target={self._leader}", *spaces, "env", "-i", *variables, *inside]

    def run(
        self,
        *words: object,
        user: str = "",
        session: bool = False,
        check: int | None = 0,
        given: bytes | None = None,
        timeout: float = PATIENCE * 2,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command there and give what came of it; ``check`` is the exit status that it must have."""
        done = subprocess.run(
            self.command(*words, user=user, session=session),
            input=given if given is not None else b"",
            capture_output=True,
            timeout=timeout,
            check=False,
        )
        result = subprocess.CompletedProcess(
            done.args, done.returncode, done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace")
        )
        if check is not None and result.returncode != check:
            said = f"{result.stdout}{result.stderr}\n{self._told()}"
            raise MachineError(f"{' '.join(map(str, words))}: status {result.returncode}, not {check}\n{said}")
        return result

    def out(self, *words: object, user: str = "", session: bool = False) -> str:
        """Run a command there and give what it prints."""
        return self.run(*words, user=user, session=session).stdout.strip()

    def inside(self, path: str) -> Path:
        """Return the path by which something there is reached from here."""
        return Path(f"/proc/{self._leader}/root{path}")

    def put(self, source: Path, destination: str) -> None:
        """Copy a file or a directory to there, as root's and readable to all; run bits stay."""
        parent, name = os.path.split(destination.rstrip("/"))
        rename = f"--transform=s|^{source.name}|{name}|" if source.name != name else "--verbose"
        options = ["--owner=0", "--group=0", "--mode=u+rw,go=rX", "--exclude=__pycache__", "-h"]
        command = ["tar", "-c", *options, rename, "-C", str(source.parent), source.name]
        packed = subprocess.run(command, capture_output=True, check=True)
        self.run("mkdir", "-p", parent)
        self.run("tar", "-x", "-C", parent, given=packed.stdout)

    def write(self, path: str, text: str, mode: int = 0o644) -> None:
        """Write a file there, as root's."""
        self.run("install", "-D", f"--mode={mode:o}", "/dev/stdin", path, given=text.encode())

    def place(self, files: Mapping[str, Path | str]) -> None:
        """Put many files there at once, as root's and readable to all: copies, and texts; scripts can be run."""
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w") as tar:
            for path, what in files.items():
                entry = tarfile.TarInfo(path.lstrip("/"))
                content = what.encode() if isinstance(what, str) else what.read_bytes()
                runs = content.startswith(b"#!") if isinstance(what, str) else what.stat().st_mode & 0o111
                entry.size, entry.mode, entry.mtime = len(content), 0o755 if runs else 0o644, time.time()
                tar.addfile(entry, io.BytesIO(content))
        self.run("tar", "-x", "-C", "/", given=packed.getvalue())

    def read(self, path: str) -> str:
        """Read a file there."""
        return self.run("cat", path).stdout

    def show(self, unit: str, name: str) -> str:
        """Return a property of a unit."""
        return self.out("systemctl", "show", "--value", f"--property={name}", unit)

    def kill(self, unit: str, number: int = signal.SIGKILL) -> None:
        """Send a signal to a unit's main process."""
        self.run("systemctl", "kill", "--kill-who=main", f"--signal={number}", unit)

    def journal(self, *words: str) -> str:
        """Return what the journal has, as ``journalctl`` prints it."""
        self.run("journalctl", "--sync", check=None)
        return self.run("journalctl", "--no-pager", "--quiet", *words, check=None).stdout

    def console(self) -> str:
        """Return the end of what the machine printed while it booted."""
        self._log.seek(0)
        return "\n".join(self._log.read().decode(errors="replace").splitlines()[-40:])

    def _told(self) -> str:
        """Return the end of what the machine has written, which says why something failed."""
        return self.journal("-n", "60", "-o", "short-monotonic") if self._leader else self.console()

    def until(
        self, holds: Callable[[], object], what: str | Callable[[], str] = "", patience: float = PATIENCE
    ) -> None:
        """Wait until something holds."""
        began = asked = time.monotonic()
        while not holds():
            if time.monotonic() > began + patience:
                wanted = what if isinstance(what, str) else what()
                raise MachineError(f"waited in vain{f' for {wanted}' if wanted else ''}:\n{self._told()}")
            # Each question takes the time of what is waited for: a twentieth of it at most, so long as naps last.
            now = time.monotonic()
            time.sleep(min(max(19 * (now - asked), (now - began) / 5, 0.1), LONGEST_NAP))
            asked = time.monotonic()

    # -- the project --------------------------------------------------------------------------------------------------

    def install_project(self) -> None:
        """Put the working tree there, with the units, in an environment of its own; what it needs is borrowed."""
        place = "/opt/xpucached"
        here = f"{place}/lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages"
        self.put(REPOSITORY / "xpucached", f"{here}/xpucached")
        self.put(REPOSITORY / "migrations", f"{here}/xpucached/migrations")
        scripts = {"xpucached": "daemon.main", "xpucachectl": "cli", "xpucached-watch": "watchd.__main__"}
        text = f"#!{place}/bin/python\nimport sys\nfrom xpucached.{{}} import main\nsys.exit(main())\n"
        self.place(
            {f"/usr/bin/{name}": text.format(module) for name, module in scripts.items()}
            | {f"{here}/needs.pth": f"{_NEEDS}\n", f"{place}/pyvenv.cfg": "home = /usr/bin\n"}
        )
        python = f"{place}/bin/python"
        make = f"mkdir {place}/bin && ln -s /usr/bin/python3 {python} && {python} -m compileall -q {here}/xpucached"
        self.run("sh", "-c", make)

    def install_units(self) -> None:
        """Put the units and what goes with them where a package would."""
        units = REPOSITORY / "systemd"
        places = {units: "/usr/lib/systemd/system", **{units / name: place for name, place in _PLACES.items()}}
        self.place(
            {f"{place}/{path.name}": path for top, place in places.items() for path in top.iterdir() if path.is_file()}
        )
        self.run("systemd-sysusers")
        self.run("systemd-tmpfiles", "--create", "xpucached.conf")
        self.run("systemctl", "daemon-reload")


_PLACES: Final = {
    "user": "/usr/lib/systemd/user",
    "sysusers.d": "/usr/lib/sysusers.d",
    "tmpfiles.d": "/usr/lib/tmpfiles.d",
    "polkit": "/usr/share/polkit-1/rules.d",
    "system-preset": "/usr/lib/systemd/system-preset",
    "udev": "/usr/lib/udev/rules.d",
    "userdel-pre.d": "/etc/shadow-maint/userdel-pre.d",
}

_NEEDS: Final = "/opt/needs"


def needs() -> dict[Path, str]:
    """Return what must be bound for `Machine.install_project`: where the project's needs are installed."""
    return {Path(psutil.__file__).resolve().parent.parent: _NEEDS}


@contextlib.contextmanager
def boot(root: Path, binds: Mapping[Path, str]) -> Iterator[Machine]:
    """Return a running machine."""
    machine = Machine(root, binds)
    try:
        yield machine.start()
    finally:
        machine.stop()


@contextlib.contextmanager
def serving(root: Path, move_in: Callable[[Machine], object], settings: str = "") -> Iterator[Machine]:
    """Return a machine on which the host's service runs for those who moved in before; more settings may be given."""
    with boot(root, needs()) as machine:
        machine.install_project()
        machine.install_units()
        move_in(machine)
        machine.write("/etc/xpucached/xpucached.toml", f'[schedule]\nsettle = "0.2s"\n{settings}')
        machine.run("systemctl", "enable", "--now", "xpucached")
        yield machine


def _sweep() -> None:
    """Remove the cgroups of machines that are gone.  Those of a machine that runs are its own, the empty ones, too."""
    for mount in Path("/proc/self/mounts").read_text().splitlines():
        _, place, kind, *_ = mount.split()
        if kind == "cgroup2":
            for top in Path(place).glob(f"{_CGROUP}-*"):
                with contextlib.suppress(OSError):
                    if "populated 1" in Path(top, "cgroup.events").read_text():
                        continue
                    for folder, _, _ in os.walk(top, topdown=False):
                        Path(folder).rmdir()


# -- the process on which a machine hangs -----------------------------------------------------------------------------


def _call(*words: str) -> None:
    subprocess.run(words, check=True, stdin=subprocess.DEVNULL)


def _hold(asked: Mapping[str, Sequence[str]]) -> int:
    """Boot a machine, again and again, until standard input ends.  Runs in namespaces of its own."""
    # In a mixed or old layout of cgroups nspawn gives systemd one that it cannot use.
    _call("mount", "-t", "cgroup2", "cgroup2", "/sys/fs/cgroup")
    group = Path(tempfile.mkdtemp(prefix=f"{_CGROUP}-", dir="/sys/fs/cgroup"))
    (group / "cgroup.procs").write_text(str(os.getpid()))
    Path("/run/systemd/nspawn").mkdir(parents=True, exist_ok=True)
    _call("mount", "-t", "tmpfs", "tmpfs", "/run/systemd/nspawn")
    _call("mount", "-t", "tmpfs", "-o", "size=4G,mode=755", "tmpfs", "/mnt")
    for name in ("upper", "work", "root", "home"):
        Path("/mnt", name).mkdir()
    lower = f"lowerdir={asked['root']},upperdir=/mnt/upper,workdir=/mnt/work"
    _call("mount", "-t", "overlay", "overlay", "-o", lower, "/mnt/root")
    # Of its own, because an overlay gives no file handles, which watchers want.
    _call("mount", "-t", "tmpfs", "-o", "size=2G,mode=755", "tmpfs", "/mnt/home")
    command = ["systemd-nspawn", "--quiet", "--boot", "--directory=/mnt/root", "--machine=xpucached-test"]
    command += ["--register=no", "--keep-unit", "--console=read-only", "--link-journal=no", "--timezone=off"]
    command += ["--resolv-conf=off", "--private-network", f"--capability={_CAPABILITIES}"]
    command += [f"--system-call-filter={_CALLS}", "--bind=/mnt/home:/home"]
    command += [f"--bind-ro={one}" for one in asked["binds"]]
    signal.signal(signal.SIGIO, lambda *_: os._exit(0))
    watcher = os.fork()
    if watcher == 0:
        # The kernel tells nobody that a pipe has ended, so one waits for it; when that one has, so have we all.
        while os.read(0, 1):
            continue
        os.kill(os.getppid(), signal.SIGIO)
        os._exit(0)
    while True:
        ended = subprocess.run(command, stdin=subprocess.DEVNULL, check=False)
        if ended.returncode != _REBOOTED:
            return ended.returncode


if __name__ == "__main__":
    sys.exit(_hold(json.loads(sys.argv[1])))
