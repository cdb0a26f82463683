"""The units are what systemd accepts and what the daemon expects of them."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from tests import REPOSITORY
from xpucached import sockets
from xpucached.cli import arguments
from xpucached.daemon import host_daemon
from xpucached.daemon import main as daemon_main
from xpucached.errors import RunningError, SettingsError
from xpucached.hostd import units
from xpucached.kinds import sycl
from xpucached.kinds.neo import kind as neo
from xpucached.kinds.table import KINDS
from xpucached.render import variables
from xpucached.settings import loading
from xpucached.watchd import holder_threads

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

SYSTEMD: Final = REPOSITORY / "systemd"
UNITS: Final = ("xpucached.service", "xpucached.socket")
OTHERS: Final = (
    "xpucached-admin.socket",
    "xpucached-driver.path",
    "xpucached-refresh.timer",
    "xpucached-refresh.service",
    "xpucached-pull.service",
)
PUSHES: Final = ("xpucached-push.service", "xpucached-push.timer")
FOLDERS: Final = {"system": SYSTEMD, "user": SYSTEMD / "user"}
GENERATOR: Final = Path("/usr/lib/systemd/user-environment-generators/30-systemd-environment-d-generator")


def tool(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed (Debian: apt-get install systemd)")
    return found


def directives(path: Path) -> dict[str, list[str]]:
    """Return what a unit sets: every value of each key, in order."""
    found: dict[str, list[str]] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        if line and line[0] not in "#[":
            key, _, value = line.partition("=")
            found.setdefault(key, []).append(value)
    return found


def installed(where: str, place: Path, *extra: str) -> list[Path]:
    """Copy the units of one folder to where the commands are known, with further lines for the service."""
    paths = []
    for name in (*UNITS, *(PUSHES if where == "user" else OTHERS)):
        text = (FOLDERS[where] / name).read_text(encoding="utf-8")
        text = text.replace("ExecStart=xpucached ", f"ExecStart={Path(sys.executable).with_name('xpucached')} ")
        text = text.replace("ExecStart=xpucachectl", f"ExecStart={Path(sys.executable).with_name('xpucachectl')}")
        text = text.replace("ExecCondition=systemctl", f"ExecCondition={tool('systemctl')}")
        path = place / name
        path.write_text(text.replace("[Service]\n", "\n".join(["[Service]", *extra, ""])), encoding="utf-8")
        paths.append(path)
    return paths


def verify(where: str, paths: Sequence[Path]) -> subprocess.CompletedProcess[str]:
    command = [tool("systemd-analyze"), f"--{where}", "verify", "--man=no", "--recursive-errors=yes", *map(str, paths)]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment(paths[0].parent))


def environment(place: Path) -> Mapping[str, str]:
    # A user's manager wants a runtime directory, and units of this host must not come into it.
    return {**os.environ, "XDG_RUNTIME_DIR": str(place), "SYSTEMD_UNIT_PATH": f"{place}:"}


@pytest.mark.parametrize("where", FOLDERS)
def test_systemd_accepts_the_units(where: str, tmp_path: Path) -> None:
    done = verify(where, installed(where, tmp_path))

    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("where", FOLDERS)
def test_systemd_would_refuse_a_misspelled_key(where: str, tmp_path: Path) -> None:
    done = verify(where, installed(where, tmp_path, "WatchdogSecs=30"))

    assert done.returncode != 0
    assert "WatchdogSecs" in done.stderr


@pytest.mark.parametrize("where", FOLDERS)
def test_the_service_starts_what_the_daemon_understands(where: str) -> None:
    (command,) = directives(FOLDERS[where] / UNITS[0])["ExecStart"]
    program, *words = shlex.split(command)
    options = daemon_main.parser().parse_args(words)

    assert program == "xpucached"
    assert options.user is (where == "user")


WAITING: Final = "xpucached-prewarm@.service"


@pytest.mark.parametrize("where", FOLDERS)
def test_systemd_accepts_the_unit_that_holds_a_service_back(where: str, tmp_path: Path) -> None:
    text = (FOLDERS[where] / WAITING).read_text(encoding="utf-8")
    client = Path(sys.executable).with_name("xpucachectl")
    made = tmp_path / WAITING.replace("@.", "@llama-7b.")
    made.write_text(text.replace("ExecStart=xpucachectl", f"ExecStart={client}"), encoding="utf-8")
    done = verify(where, [*installed(where, tmp_path), made])

    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("where", FOLDERS)
def test_a_service_is_held_back_for_a_bounded_time(where: str) -> None:
    service = directives(FOLDERS[where] / WAITING)
    program, *words = shlex.split(service["ExecStart"][0].replace("%i", "llama-7b"))
    options = arguments.parse(words)

    assert program == "xpucachectl"
    assert (options.verb, options.models, options.wait) == ("prewarm", ["llama-7b"], True)
    assert options.scope == where
    # systemd's own bound is for a client that hangs: it comes after ours.
    (limit,) = service["TimeoutStartSec"]
    assert options.timeout == 600
    assert limit == "11min"


@pytest.mark.parametrize("where", FOLDERS)
def test_the_socket_is_where_daemon_and_client_look(where: str, tmp_path: Path) -> None:
    user = where == "user"
    environ = {"HOME": str(tmp_path), "XDG_RUNTIME_DIR": str(tmp_path)}
    socket = directives(FOLDERS[where] / UNITS[1])
    config = loading.load(None, user=user, environ=environ)

    assert socket["ListenStream"] == [str(config.paths.socket).replace(str(tmp_path), "%t")]
    assert config.paths.socket == Path(sockets.socket_path(user=user, environ=environ))
    assert socket["SocketMode"] == [f"{config.paths.socket_mode:04o}"]


def test_the_directories_that_systemd_makes_are_the_daemon_s() -> None:
    service = directives(SYSTEMD / UNITS[0])
    usual = loading.load(None, user=False, environ={})
    made = {
        "CONFIGURATION_DIRECTORY": str(Path("/etc", *service["ConfigurationDirectory"])),
        "STATE_DIRECTORY": str(Path("/var/lib", *service["StateDirectory"])),
        "RUNTIME_DIRECTORY": str(Path("/run", *service["RuntimeDirectory"])),
        **dict(line.split("=", 1) for line in service["Environment"]),
    }
    under = loading.load(None, user=False, environ=made)

    assert (under.file, under.paths.state, under.paths.socket) == (usual.file, usual.paths.state, usual.paths.socket)
    # systemd gives all in that directory to the daemon's user, also the socket that is for administrators.
    assert under.paths.socket.parent != Path(made["RUNTIME_DIRECTORY"])
    assert service["RuntimeDirectoryPreserve"] == ["yes"]


def test_what_root_reads_is_no_link_into_a_directory_of_the_daemon_s() -> None:
    service = directives(SYSTEMD / UNITS[0])
    its = [
        f"{top}/{name}/"
        for top, key in (("/run", "RuntimeDirectory"), ("/var/lib", "StateDirectory"))
        for name in service[key]
    ]
    lines = (SYSTEMD / "tmpfiles.d/xpucached.conf").read_text().splitlines()
    links = [line.split()[-1] for line in lines if line.startswith("L")]
    made = [line.split() for line in lines if line.startswith("f")]

    # Whoever logs in is shown it by root: a link of the daemon's could lead to any file, a pipe would hold them all.
    assert not [target for target in links if f"{target}/".startswith(tuple(its))]
    assert [(path, owner) for _, path, _, owner, *_ in made] == [("/run/motd.d/60-xpucached", sockets.ACCOUNT)]
    assert not made[0][1].startswith(tuple(its))


@pytest.mark.parametrize("where", FOLDERS)
def test_the_service_is_not_started_again_in_vain(where: str) -> None:
    (statuses,) = directives(FOLDERS[where] / UNITS[0])["RestartPreventExitStatus"]

    assert {int(one) for one in statuses.split()} == {RunningError.exit, SettingsError.exit}


@pytest.mark.parametrize("name", ["xpucached.service", "xpucached-worker@.service"])
def test_users_of_a_directory_service_are_known_before_it_is_asked_for_them(name: str) -> None:
    assert "nss-user-lookup.target" in " ".join(directives(SYSTEMD / name)["After"]).split()


def test_the_accounts_are_made_and_the_daemon_s_may_open_nothing() -> None:
    (user,) = directives(SYSTEMD / UNITS[0])["User"]
    (group,) = directives(SYSTEMD / "xpucached-admin.socket")["SocketGroup"]
    lines = (SYSTEMD / "sysusers.d" / "xpucached.conf").read_text(encoding="utf-8").splitlines()
    words = [shlex.split(line) for line in lines if line and not line.startswith("#")]

    (fetching,) = directives(SYSTEMD / "xpucached-pull.service")["User"]
    assert [line[:2] for line in words] == [["u", user], ["u", fetching], ["g", group]]


def test_the_sockets_are_told_apart_and_only_one_is_for_everybody() -> None:
    public, admin = (directives(SYSTEMD / name) for name in ("xpucached.socket", "xpucached-admin.socket"))

    assert (public["SocketMode"], admin["SocketMode"]) == (["0666"], ["0660"])
    assert admin["FileDescriptorName"] == [host_daemon.ADMIN]
    assert public["FileDescriptorName"] != admin["FileDescriptorName"]
    assert [public["ListenStream"], admin["ListenStream"]] == [[sockets.PUBLIC], [sockets.ADMIN]]


def test_a_worker_is_where_the_host_s_daemon_looks_for_it() -> None:
    service = directives(SYSTEMD / "xpucached-worker@.service")
    variables = dict(line.split("=", 1) for line in service["Environment"])
    environ = {name: text.replace("%i", "1234") for name, text in variables.items()}
    config = loading.load(None, user=True, worker=True, environ={"HOME": "/home/x", **environ})

    assert str(config.paths.socket) == sockets.worker_path(1234)
    socket = directives(SYSTEMD / "xpucached-worker@.socket")
    assert [text.replace("%i", "1234") for text in socket["ListenStream"]] == [sockets.worker_path(1234)]
    # Nobody but the user, the host's daemon and root may even connect.
    assert (socket["SocketUser"], socket["SocketGroup"], socket["SocketMode"]) == (["%i"], [sockets.ACCOUNT], ["0660"])
    # In /run a user may fill nothing: it is in the memory of all.
    assert "RuntimeDirectory" not in service
    assert "StateDirectory" not in service
    assert service["ExecStartPre"][0].replace("%i", "1234").endswith(f" -o +1234 -m 0700 {config.paths.state}")
    assert f"-{config.paths.state}" in service["ReadWritePaths"][0].replace("%i", "1234").split()
    assert daemon_main.parser().parse_args(shlex.split(service["ExecStart"][0])[1:]).worker
    assert units.unit(1234) == "xpucached-worker@1234.service"
    # A worker that steps aside has done what it should; whoever stops it while it starts has not made it fail.
    assert service["SuccessExitStatus"] == [f"{RunningError.exit} SIGTERM"]


def test_bundles_are_fetched_before_the_daemon_is_told_and_lie_where_workers_look() -> None:
    unit = directives(SYSTEMD / "xpucached-pull.service")
    given = arguments.parse(shlex.split(unit["ExecStart"][0])[1:])

    assert (given.verb, given.scope) == ("bundle fetch", "system")
    assert unit["Before"] == ["xpucached.service xpucached-refresh.service"]
    folder = loading.load(None, user=True, environ={"HOME": "/h", "XDG_RUNTIME_DIR": "/r"}).bundles.folder
    assert folder == Path("/var/cache", unit["CacheDirectory"][0])
    # Who has a network reads no home and no store.
    assert (unit["ProtectHome"], unit["User"]) == (["yes"], ["xpucached-pull"])
    # What is copied there while it is read is no memory of the unit's, which has no more than one layer may have.
    assert "TMPDIR=/var/tmp" in unit["Environment"]


def test_what_was_compiled_here_is_pushed_only_where_a_user_enabled_that() -> None:
    unit, timer = (directives(SYSTEMD / "user" / name) for name in PUSHES)
    given = arguments.parse(shlex.split(unit["ExecStart"][0])[1:])

    assert (given.verb, given.scope) == ("bundle send", "user")
    # Nothing starts it but its timer, which no other unit brings along.
    assert ("WantedBy" in unit, timer["WantedBy"]) == (False, ["timers.target"])
    assert not (SYSTEMD / "user-preset").exists()
    others = [path for path in SYSTEMD.rglob("*.*") if path.is_file() and path.name not in PUSHES]
    assert not [path.name for path in others if "xpucached-push" in path.read_text(encoding="utf-8")]


@pytest.mark.parametrize("uid", [0, -1])
def test_no_worker_is_root_s(uid: int) -> None:
    with pytest.raises(ValueError, match="no worker"):
        units.unit(uid)


THRESHOLDS: Final = {
    "xpucached.service": 5,
    "xpucached-worker@.service": 12,
    "xpucached-prewarm@.service": 5,
    "xpucached-refresh.service": 5,
    "xpucached-pull.service": 15,
}


@pytest.mark.parametrize("name", THRESHOLDS)
def test_the_units_are_fenced_in_as_the_manual_says(name: str) -> None:
    command = [tool("systemd-analyze"), "security", "--offline=true", f"--threshold={THRESHOLDS[name]}"]
    done = subprocess.run([*command, str(SYSTEMD / name)], capture_output=True, text=True, check=False)
    manual = (SYSTEMD.parent / "docs" / "security.md").read_text(encoding="utf-8")

    assert done.returncode == 0, done.stdout[-300:] + done.stderr
    assert f"| `{name}` | {THRESHOLDS[name] / 10} |" in manual


def test_no_unit_whose_program_opens_what_lies_in_stores_is_kept_from_openat2() -> None:
    # With this key systemd answers every openat2 with ENOSYS, as a kernel before 5.6 does.
    kept = {path.name for path in SYSTEMD.rglob("*.service") if "RestrictSUIDSGID" in directives(path)}

    assert kept == {"xpucached.service", WAITING, "xpucached-refresh.service", "xpucached-pull.service"}
    assert "RestrictSUIDSGID" not in directives(SYSTEMD / "user/xpucached.service")


def test_the_host_s_daemon_opens_nothing_in_stores() -> None:
    line = "import sys, xpucached.daemon.host_daemon as _; print('xpucached.kinds.fs' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", line], capture_output=True, text=True, check=True)

    assert done.stdout == "False\n"


def test_the_host_s_daemon_has_no_way_out_of_its_unit() -> None:
    service = directives(SYSTEMD / UNITS[0])

    assert service["CapabilityBoundingSet"] == [""]
    for name in ("NoNewPrivileges", "ProtectHome", "PrivateDevices", "PrivateNetwork", "MemoryDenyWriteExecute"):
        assert service[name] == ["yes"], name


def test_the_environment_example_switches_the_managed_store_on(tmp_path: Path) -> None:
    if not GENERATOR.exists():
        pytest.skip(f"{GENERATOR} is not installed (Debian: apt-get install systemd)")
    place = tmp_path / "config" / "environment.d"
    shutil.copytree(SYSTEMD / "environment.d", place)
    environ = {
        "HOME": str(tmp_path),
        "XDG_CONFIG_HOME": str(place.parent),
        "XDG_RUNTIME_DIR": "/r",
        "PATH": os.environ["PATH"],
    }
    for further in ({}, {"XDG_CACHE_HOME": str(tmp_path / "elsewhere")}):
        done = subprocess.run([GENERATOR], env={**environ, **further}, capture_output=True, text=True, check=True)
        told = dict(line.split("=", 1) for line in done.stdout.splitlines())
        settings = loading.load(None, user=True, environ={**environ, **further})

        for begin, kind in (("SYCL_", KINDS[sycl.NAME]), ("NEO_", KINDS[neo.KIND.name])):
            given = {**kind.discovery.enable(settings.managed(kind.name)), **kind.discovery.EVERYWHERE}
            assert {name: told.get(name) for name in told if name.startswith(begin)} == given


def test_systemd_reads_what_env_writes_for_it(tmp_path: Path) -> None:
    if not GENERATOR.exists():
        pytest.skip(f"{GENERATOR} is not installed (Debian: apt-get install systemd)")
    values = {"SYCL_CACHE_DIR": "/a b/$HOME/${X}/$$/'\"`\\\\n%h", "SYCL_CACHE_PERSISTENT": "1", "NEO_CACHE_DIR": " x "}
    place = tmp_path / "environment.d"
    place.mkdir()
    (place / "60-cache.conf").write_text(variables.variables(values, variables.Syntax.ENVIRONMENT, values) + "\n")
    environ = {"HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path), "PATH": os.environ["PATH"]}
    done = subprocess.run([GENERATOR], env=environ, capture_output=True, text=True, check=True)
    # What it prints is for a shell.
    shell = f"{done.stdout}\nprintf '%s\\n' " + " ".join(f'"${{{name}}}"' for name in values)
    told = subprocess.run(["/bin/sh", "-c", shell], env={}, capture_output=True, text=True, check=True)
    assert told.stdout.splitlines() == list(values.values())


def test_the_example_of_a_service_has_what_env_prints() -> None:
    told = dict(one.split("=", 1) for one in directives(SYSTEMD / "examples" / "app-store.conf")["Environment"])
    ours = neo.KIND.discovery
    assert told == {
        **sycl.KIND.discovery.enable(Path(told["SYCL_CACHE_DIR"])),
        **ours.enable(Path(told["SYCL_CACHE_DIR"]).with_name("neo")),
        **ours.EVERYWHERE,
    }


WATCH: Final = "xpucached-watch.service"


def test_systemd_accepts_the_unit_that_watches(tmp_path: Path) -> None:
    text = (SYSTEMD / WATCH).read_text(encoding="utf-8")
    made = tmp_path / WATCH
    made.write_text(text.replace("ExecStart=xpucached-watch", f"ExecStart={sys.executable} -m xpucached.watchd"))
    done = verify("system", [made])

    assert (done.returncode, done.stderr) == (0, "")


def test_the_unit_that_watches_is_fenced_in() -> None:
    command = [tool("systemd-analyze"), "security", "--offline=true", "--threshold=14", str(SYSTEMD / WATCH)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stdout[-300:] + done.stderr


def test_who_watches_has_two_rights_a_user_and_the_place_where_daemons_look() -> None:
    unit = directives(SYSTEMD / WATCH)
    users = (SYSTEMD / "sysusers.d" / "xpucached-watch.conf").read_text(encoding="utf-8").splitlines()
    words = [shlex.split(line) for line in users if not line.startswith("#")]

    assert unit["CapabilityBoundingSet"] == unit["AmbientCapabilities"] == ["CAP_SYS_ADMIN CAP_DAC_READ_SEARCH"]
    assert [line[:2] for line in words] == [["u", *unit["User"]]]
    assert str(Path("/run", *unit["RuntimeDirectory"], "watch.sock")) == sockets.WATCH
    assert loading.load(None, user=True, environ={"XDG_RUNTIME_DIR": "/r"}).watch.socket == Path(sockets.WATCH)
    assert unit["ExecStart"] == ["xpucached-watch"]


def test_who_watches_is_not_waited_for_where_a_descriptor_keeps_it() -> None:
    (seconds,) = directives(SYSTEMD / WATCH)["TimeoutStopSec"]

    # systemd waits twice: until it kills, and for what cannot be killed.
    assert holder_threads._FAREWELL < int(seconds) <= 5
