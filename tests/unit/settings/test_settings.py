"""`settings`: what is read from where, and that every mistake is refused with its place and what was expected."""

from __future__ import annotations

import errno
import getpass
import math
import operator
import os
import pwd
import re
import shlex
import tomllib
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tests import REPOSITORY
from xpucached import answers, mounts, quantities, sockets
from xpucached.bundling import signing
from xpucached.daemon import main as daemon
from xpucached.domain.bounds import Duration, Whole
from xpucached.domain.names import KindName
from xpucached.domain.plans import DiskSpace, Limits, Policy
from xpucached.domain.stores import Store
from xpucached.domain.throttling import ThrottlePolicy
from xpucached.domain.workloads import Loader, RunSpec
from xpucached.errors import RequestError, SettingsError
from xpucached.planning.quota import too_small
from xpucached.planning.ranking import effective
from xpucached.settings import loading, model_files, toml
from xpucached.settings.keys import keys
from xpucached.settings.sections import Bundles
from xpucached.settings.toml import Toml
from xpucached.settings.values import shape, spell, spell_size

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from xpucached.domain.models import Model
    from xpucached.settings import Settings

MANUAL: Final = REPOSITORY / "docs" / "configuration.md"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Return the place of a configuration."""
    return tmp_path / "xpucached.toml"


def load(file: Path | None, text: str | None = None, *, user: bool = True, **variables: str) -> Settings:
    """Write the file, and load it with only these variables."""
    if file is not None and text is not None:
        file.write_text(text, encoding="utf-8")
    return loading.load(file, user=user, environ={"HOME": "/home/me", "XDG_RUNTIME_DIR": "/run/user/1", **variables})


def refusal(file: Path | None, text: str | None = None, **variables: str) -> str:
    """Return the message with which a configuration is refused."""
    with pytest.raises(SettingsError) as caught:
        load(file, text, user=True, **variables)
    return caught.value.message


# -- where things are ---------------------------------------------------------------------------------------------


def places(found: Settings) -> tuple[str, ...]:
    return tuple(map(str, (found.file, found.paths.state, found.paths.cache, found.paths.socket, found.paths.models)))


def test_places_of_a_user_without_variables() -> None:
    assert places(load(None)) == (
        "/home/me/.config/xpucached/xpucached.toml",
        "/home/me/.local/state/xpucached",
        "/home/me/.cache/xpucached",
        "/run/user/1/xpucached/xpucached.sock",
        "/home/me/.config/xpucached/models.d",
    )


def test_places_of_a_user_follow_xdg() -> None:
    found = load(None, XDG_CONFIG_HOME="/c", XDG_STATE_HOME="/s", XDG_CACHE_HOME="/k", XDG_RUNTIME_DIR="/r")

    assert places(found) == (
        "/c/xpucached/xpucached.toml",
        "/s/xpucached",
        "/k/xpucached",
        "/r/xpucached/xpucached.sock",
        "/c/xpucached/models.d",
    )


def test_relative_xdg_values_are_ignored() -> None:
    found = load(None, XDG_CONFIG_HOME="c", XDG_STATE_HOME="", XDG_CACHE_HOME="./k")

    assert places(found) == places(load(None))


def test_places_of_the_host() -> None:
    assert places(load(None, user=False, XDG_STATE_HOME="/s")) == (
        "/etc/xpucached/xpucached.toml",
        "/var/lib/xpucached",
        "/var/cache/xpucached",
        "/run/xpucached/xpucached.sock",
        "/etc/xpucached/models.d",
    )


@pytest.mark.parametrize("user", [True, False])
def test_directories_that_systemd_made_come_first(*, user: bool) -> None:
    found = load(
        None,
        user=user,
        CONFIGURATION_DIRECTORY="/c",
        STATE_DIRECTORY="/s:/more",
        CACHE_DIRECTORY="/k",
        RUNTIME_DIRECTORY="/r",
    )

    assert places(found) == ("/c/xpucached.toml", "/s", "/k", "/r/xpucached.sock", "/c/models.d")


@pytest.mark.parametrize("user", [True, False])
@pytest.mark.parametrize("runtime", ["/run/user/1", "", "relative"])
def test_the_client_looks_for_the_socket_where_the_daemon_makes_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, runtime: str, *, user: bool
) -> None:
    environ = {"HOME": "/home/me", "XDG_RUNTIME_DIR": runtime}
    tmp_path.chmod(0o700)
    ours, seen = os.lstat(tmp_path), os.lstat
    usual = f"/run/user/{os.getuid()}"
    monkeypatch.setattr(os, "lstat", lambda path, **more: ours if path == usual else seen(path, **more))

    assert loading.load(None, user=user, environ=environ).paths.socket == Path(
        sockets.socket_path(user=user, environ=environ)
    )


def test_without_home_the_password_file_tells() -> None:
    found = loading.load(None, user=True, environ={"XDG_RUNTIME_DIR": "/r", "HOME": "relative"})

    assert found.paths.state == Path(pwd.getpwuid(os.getuid()).pw_dir, ".local/state/xpucached")


def test_without_home_and_an_account_it_is_said_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container that runs as any number."""
    monkeypatch.setattr(os, "getuid", lambda: 4_000_000_000)
    for name in ("HOME", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)
    for asked in (lambda: loading.load(None, user=True, environ={"XDG_RUNTIME_DIR": "/r"}), signing.key_folders):
        with pytest.raises(SettingsError, match="user 4000000000 has no account here") as caught:
            asked()
        assert "set HOME" in caught.value.hint
    monkeypatch.setenv("HOME", "/home/me")
    assert signing.key_folders()[1] == Path("/home/me/.config/xpucached/trust.d")


def test_without_a_runtime_directory_a_socket_must_be_named(monkeypatch: pytest.MonkeyPatch) -> None:
    # Who runs the tests may have the usual one.
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    with pytest.raises(SettingsError, match="XDG_RUNTIME_DIR is not set") as caught:
        loading.load(None, user=True, environ={"HOME": "/home/me"})
    assert "XPUCACHED_SOCKET" in caught.value.hint
    environ = {"HOME": "/home/me", "XPUCACHED_SOCKET": "/home/me/.sock"}
    assert loading.load(None, user=True, environ=environ).paths.socket == Path("/home/me/.sock")
    assert loading.load(None, user=False, environ={}).paths.socket == Path("/run/xpucached/xpucached.sock")


# -- values -------------------------------------------------------------------------------------------------------

FULL: Final = """
[paths]
state = "/s"
cache = "/k"
socket = "/r/sock"
socket_mode = "0660"
models = "/m"

[stores]
found = false
paths = ["/a", "/b/../c", "/a"]

[driver]
variables = { LD_LIBRARY_PATH = "/d", B = "" }
probe_timeout = 5
compile_timeout = "1m"
staged = ["/mnt/next", "/ostree/deploy/*/deploy/*"]

[policy]
keep_driver_generations = 2
max_unused = "2w"
max_bytes = "10GB"
grace = 1.5
min_free_bytes = "2GB"
quota = "5GB"
low_water = 80
trash_keep = "1d"
trash_max_bytes = "1MB"
stores = { "/a" = { max_bytes = "1GB", max_unused = "unlimited", grace = 0 } }
users = { 0 = { min_free_bytes = "3GB", keep_driver_generations = 3 } }
attempts = 5
retry_after = "1h30m"
ahead_keep = "2d"

[schedule]
scan_interval = "1m"
settle = "500ms"
scrub = "unlimited"
replay = false
prewarm = false
evict = false
ahead = false

[throttle]
window = "22:30-06:05"
only_when_idle = true
cpu_pressure = "unlimited"
memory_pressure = "5%"
io_pressure = 30
gpu_busy = 1
max_wait = "2h"
isolate = false
tasks = 100

[watch]
mode = "Inotify"
loads = true
socket = "/w"

[workers]
humans = false
include = ["llm", "1005"]
exclude = ["bob"]
every = "2h"
idle = "unlimited"
[bundles]
pull = ["h.example/caches/app:v1"]
folder = "/b"
take = false
push = "h.example/made/{user}:{host}"
[metrics]
listen = "[::1]:9845"
[log]
level = "DEBUG"
"""


def test_every_key_is_read(file: Path) -> None:
    found = load(file, FULL)

    assert places(found) == (str(file), "/s", "/k", "/r/sock", "/m")
    assert found.paths.socket_mode == 0o660
    assert found.managed(KindName("sycl")) == Path("/k/sycl")
    assert (found.stores.found, tuple(found.stores.places)) == (False, (Path("/a"), Path("/c")))
    assert (found.driver.variables, found.driver.probe_timeout) == ({"LD_LIBRARY_PATH": "/d", "B": ""}, 5.0)
    assert found.driver.compile_timeout == 60.0
    assert found.driver.staged == ("/mnt/next", "/ostree/deploy/*/deploy/*")
    assert found.policy == Policy(
        keep_driver_generations=2,
        max_unused=14 * 86400.0,
        max_bytes=10_000_000_000,
        grace=1.5,
        attempts=5,
        retry_after=5400.0,
        ahead_keep=2 * 86400.0,
        min_free_bytes=2_000_000_000,
        quota=5_000_000_000,
        low_water=80,
        trash_keep=86400.0,
        trash_max_bytes=1_000_000,
        users=(Limits(None, 0, keep_driver_generations=3, min_free_bytes=3_000_000_000),),
        stores=(Limits(Path("/a"), None, max_unused=math.inf, max_bytes=1_000_000_000, grace=0.0),),
    )
    assert found.throttle == ThrottlePolicy(
        window=(22 * 60 + 30, 6 * 60 + 5),
        only_when_idle=True,
        cpu_pressure=None,
        memory_pressure=5,
        io_pressure=30,
        gpu_busy=1,
        max_wait=7200.0,
        isolate=False,
        tasks=100,
    )
    assert (found.schedule.scan_interval, found.schedule.settle, found.schedule.scrub) == (60.0, 0.5, None)
    automatic = (found.schedule.replay, found.schedule.prewarm, found.schedule.evict, found.schedule.ahead)
    assert automatic == (False, False, False, False)
    assert (found.watch.mode, found.watch.loads, found.watch.socket) == ("inotify", True, Path("/w"))
    workers = found.workers
    assert (workers.humans, workers.include, workers.exclude) == (False, ("llm", "1005"), ("bob",))
    assert (workers.every, workers.idle) == (7200.0, None)
    assert found.bundles == Bundles(
        ("h.example/caches/app:v1",), Path("/b"), take=False, push="h.example/made/{user}:{host}"
    )
    assert found.metrics.listen == "[::1]:9845"
    assert found.log.level == "debug"
    assert len(re.findall(r"^\w+ =", FULL, re.MULTILINE)) == len(keys())


def test_without_a_file_everything_has_a_default() -> None:
    found = load(None)

    assert found.policy == Policy()
    assert found.throttle == ThrottlePolicy()
    assert (found.stores.found, found.stores.places, found.driver.variables) == (True, {}, {})
    assert (found.schedule.scan_interval, found.schedule.settle, found.schedule.scrub) == (600.0, 2.0, 7 * 86400.0)
    automatic = (found.schedule.replay, found.schedule.prewarm, found.schedule.evict, found.schedule.ahead)
    assert automatic == (True, True, True, True)
    assert (found.watch.mode, found.watch.loads) == ("auto", False)
    assert found.bundles == Bundles((), Path("/var/cache/xpucached-bundles"), take=True)
    assert found.log.level == "info"
    assert (found.paths.socket_mode, load(None, user=False).paths.socket_mode) == (0o600, 0o666)


def test_limits_of_a_user_whom_nobody_knows_are_refused(file: Path) -> None:
    with pytest.raises(SettingsError, match="no user 'nobody-of-that-name'"):
        load(file, '[policy.users.nobody-of-that-name]\nmax_bytes = "1GB"\n')


def test_in_the_host_s_configuration_they_are_told_and_all_else_holds(file: Path) -> None:
    text = "[policy]\ngrace = 1\n[policy.users.nobody-of-that-name]\ngrace = 2\n[policy.users.root]\ngrace = 3\n"
    found = load(file, text, user=False)
    said = f"{file}:3: policy.users.nobody-of-that-name: there is no user 'nobody-of-that-name' on this host"
    assert found.unknown_users == {"nobody-of-that-name": said}
    assert (found.policy.grace, [(one.user, one.grace) for one in found.policy.users]) == (1, [(0, 3)])
    variable = "XPUCACHED_POLICY_USERS"
    found = load(file, text, user=False, **{variable: '{"nobody-else": {}}'})
    assert found.unknown_users["nobody-else"] == f"{variable}: there is no user 'nobody-else' on this host"
    # What can be no name is refused there, too, and so is what is no table.
    with pytest.raises(SettingsError, match="null"):
        load(file, '[policy.users."a\\u0000b"]\ngrace = 2\n', user=False)
    with pytest.raises(SettingsError, match="expected a table"):
        load(file, "[policy]\nusers = 1\n", user=False)


BOUNDS: Final = {
    "driver.probe_timeout": ("1s", "10m"),
    "driver.compile_timeout": ("1s", "1d"),
    "policy.keep_driver_generations": ("0", "1000"),
    "policy.max_unused": ("1s", "36500d"),
    "policy.grace": ("0s", "365d"),
    "policy.low_water": ("1", "100"),
    "policy.trash_keep": ("0s", "365d"),
    "policy.attempts": ("1", "100"),
    "policy.retry_after": ("0s", "365d"),
    "policy.ahead_keep": ("1m", "3650d"),
    "schedule.scan_interval": ("1s", "365d"),
    "schedule.settle": ("0s", "1m"),
    "schedule.scrub": ("1m", "36500d"),
    "throttle.max_wait": ("0s", "7d"),
    "throttle.tasks": ("16", "1000000"),
    "workers.every": ("1m", "365d"),
    "workers.idle": ("1s", "365d"),
}


def test_a_value_at_its_bounds_is_read_and_one_beyond_them_is_refused() -> None:
    bounded = {key: bound for key in keys() if isinstance(bound := shape(key.kind)[1], Duration | Whole)}
    assert {f"{key.section}.{key.name}" for key in bounded} == set(BOUNDS)
    for key, bound in bounded.items():
        name = f"{key.section}.{key.name}"
        for text in BOUNDS[name]:
            assert load(None, user=True, **{key.variable: text}).shown[name] == f"{text} ({key.variable})"
        beyond = ("s", 0.001) if isinstance(bound, Duration) else ("", 1)
        least, most = (quantities.duration(text) if beyond[0] else int(text) for text in BOUNDS[name])
        for number in (*([least - beyond[1]] if least else []), most + beyond[1]):
            assert refusal(None, **{key.variable: f"{number}{beyond[0]}"}).startswith(f"{key.variable}: expected a ")


def test_what_is_no_more_than_it_may_be_is_read(file: Path) -> None:
    text = """
        [paths]
        socket_mode = "640"
        [policy]
        max_bytes = 9223372036854775807
        [throttle]
        gpu_busy = 100
        io_pressure = "99%"
        window = "00:00 - 23:59"
        [metrics]
        listen = "127.255.0.1:65535"
    """
    found = load(file, f"{text}[workers]\ninclude = ['{'b' * 64}$']\n[stores]\npaths = {['/a'] * 1000}\n")

    assert (found.paths.socket_mode, found.policy.max_bytes) == (0o640, (1 << 63) - 1)
    assert (found.throttle.gpu_busy, found.throttle.io_pressure, found.throttle.window) == (100, 99, (0, 1439))
    assert (found.metrics.listen, found.workers.include) == ("127.255.0.1:65535", (f"{'b' * 64}$",))
    assert len(found.stores.paths) == 1000
    least = load(file, '[paths]\nsocket_mode = "0200"\n[policy]\nmax_bytes = 1\n')
    assert (least.paths.socket_mode, least.policy.max_bytes) == (0o200, 1)


def test_limits_can_be_lifted(file: Path) -> None:
    found = load(file, '[policy]\nmax_unused = "unlimited"\nmax_bytes = "unlimited"\n')

    assert (found.policy.max_unused, found.policy.max_bytes) == (None, None)


def test_a_limit_of_all_can_be_lifted_for_one(file: Path) -> None:
    lifted = 'max_bytes = "unlimited"\nmin_free_bytes = "unlimited"\n'
    own = f'[policy.stores."/s"]\n{lifted}[policy.users.{os.getuid()}]\n{lifted}'
    found = load(file, f'[policy]\nquota = "1GiB"\nmin_free_bytes = "2GiB"\n{own}')
    one, other = (Store(KindName("k"), Path(place)) for place in ("/s", "/other"))
    room = DiskSpace(other, os.getuid())
    assert effective(found.policy, None, other).min_free_bytes == 2 << 30
    assert [effective(found.policy, room, store).min_free_bytes for store in (one, other)] == [0, 0]
    assert too_small({other: 2 << 30}, {other: os.getuid()}, found.policy) is None
    assert too_small({other: 2 << 30}, {other: os.getuid() + 1}, found.policy) is not None
    for name in ("stores", "users"):
        assert "=(max_bytes=unlimited min_free_bytes=unlimited)" in found.shown[f"policy.{name}"]


@pytest.mark.parametrize(
    ("variable", "text", "attribute", "value"),
    [
        ("PATHS_STATE", "/x", "paths.state", Path("/x")),
        ("PATHS_SOCKET", "/x/s", "paths.socket", Path("/x/s")),
        ("SOCKET", "/x/s", "paths.socket", Path("/x/s")),
        ("PATHS_SOCKET_MODE", "0666", "paths.socket_mode", 0o666),
        ("STORES_FOUND", "yes", "stores.found", True),
        ("STORES_PATHS", "/x:/y", "stores.places", {Path("/x"): None, Path("/y"): None}),
        (
            "STORES_PATHS",
            "neo:/x/../z:/y:sycl:/w",
            "stores.places",
            {Path("/z"): "neo", Path("/y"): None, Path("/w"): "sycl"},
        ),
        ("STORES_PATHS", "", "stores.places", {}),
        ("DRIVER_VARIABLES", '{"C": "d"}', "driver.variables", {"LD_LIBRARY_PATH": "/d", "B": "", "C": "d"}),
        ("DRIVER_PROBE_TIMEOUT", "10", "driver.probe_timeout", 10.0),
        ("SCHEDULE_PREWARM", "1", "schedule.prewarm", True),
        ("SCHEDULE_EVICT", "On", "schedule.evict", True),
        ("METRICS_LISTEN", "127.0.0.2:1", "metrics.listen", "127.0.0.2:1"),
        ("METRICS_LISTEN", "off", "metrics.listen", "off"),
        ("LOG_LEVEL", "error", "log.level", "error"),
    ],
)
def test_a_variable_comes_before_the_file(file: Path, variable: str, text: str, attribute: str, value: object) -> None:
    found = load(file, FULL, user=True, **{f"XPUCACHED_{variable}": text})

    assert operator.attrgetter(attribute)(found) == value
    assert operator.attrgetter(attribute)(load(file, FULL)) != value


def test_the_policy_can_be_set_by_variables() -> None:
    found = load(None, XPUCACHED_POLICY_ATTEMPTS="7", XPUCACHED_POLICY_MAX_BYTES="1KiB", XPUCACHED_POLICY_GRACE="0")

    assert found.policy == Policy(attempts=7, max_bytes=1024, grace=0.0)


def test_of_a_table_a_variable_changes_what_it_names(file: Path) -> None:
    file.write_text('[driver.variables]\nA = "1"\nB = "2"\n[policy]\nattempts = 7\n', encoding="utf-8")

    found = load(file, XPUCACHED_DRIVER_VARIABLES='{"B": "3", "C": "4"}', XPUCACHED_POLICY_GRACE="0")

    assert found.driver.variables == {"A": "1", "B": "3", "C": "4"}
    assert found.policy == Policy(attempts=7, grace=0.0)


def test_limits_of_a_store_hold_where_a_link_to_it_leads(file: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "store")

    (limits,) = load(file, f'[policy.stores."{tmp_path}/link"]\ngrace = 1\n').policy.stores

    assert limits == Limits(tmp_path.resolve() / "store", None, grace=1.0)


def test_the_daemons_own_variable_for_the_socket_wins() -> None:
    assert load(None, XPUCACHED_SOCKET="/a/s", XPUCACHED_PATHS_SOCKET="/b/s").paths.socket == Path("/b/s")


def test_foreign_variables_are_let_be() -> None:
    load(None, XPUCACHED_RUN="x", XPUCACHED_RUNTIMES="y", XPUCACHED_REQUIRE_RUNTIMES="1", XPU="z")


def test_it_shows_every_value_and_where_it_comes_from(file: Path) -> None:
    shown = load(
        file, '[policy]\n\ngrace = 90\n[stores]\npaths = ["/a"]\n', XPUCACHED_POLICY_ATTEMPTS="4", XPUCACHED_SOCKET="/x"
    ).shown

    assert list(shown) == [f"{key.section}.{key.name}" for key in keys()]
    assert shown["policy.grace"] == f"90s ({file}:3)"
    assert shown["policy.attempts"] == "4 (XPUCACHED_POLICY_ATTEMPTS)"
    assert shown["policy.max_bytes"] == "unlimited (default)"
    assert shown["paths.socket"] == "/x (XPUCACHED_SOCKET)"
    assert shown["paths.socket_mode"] == "0600 (default)"
    assert shown["stores.paths"] == f"/a ({file}:5)"
    assert shown["schedule.prewarm"] == "true (default)"
    assert shown["driver.variables"] == "none (default)"


def test_a_setting_is_told_from_where_it_comes_from_whatever_the_path_of_the_file_holds(tmp_path: Path) -> None:
    file = tmp_path / "a (b) (c" / "x.toml"
    file.parent.mkdir()
    shown = answers.typed(load(file, '[stores]\npaths = ["/d (e"]\n').shown)
    assert shown["stores.paths"] == {"value": "/d (e", "source": f"{file}:2"}


def test_what_is_shown_of_a_full_file_can_be_read_by_people(file: Path) -> None:
    shown = {name: value.partition(f" ({file}:")[0] for name, value in load(file, FULL).shown.items()}

    assert shown["paths.socket_mode"] == "0660"
    assert shown["stores.paths"] == "/a:/b/../c:/a"
    assert shown["driver.variables"] == "LD_LIBRARY_PATH=/d B="
    assert shown["policy.max_bytes"] == "9765625KiB"
    assert shown["policy.stores"] == "/a=(max_unused=unlimited max_bytes=1000000000 grace=0s)"
    assert shown["policy.users"] == "root=(keep_driver_generations=3 min_free_bytes=3000000000)"
    assert shown["schedule.settle"] == "0.5s"
    assert shown["throttle.window"] == "22:30-06:05"
    assert shown["throttle.cpu_pressure"] == "unlimited"
    assert load(file, "[policy.users.4000000000]\ngrace = 1\n").shown["policy.users"].startswith("4000000000=(")


def test_a_file_that_changed_since_it_was_read_is_told(file: Path) -> None:
    settings = load(file, "[policy]\ngrace = 1\n")
    assert loading.outdated(settings, "reload") == ()

    def told() -> tuple[str, str, str]:
        (problem,) = loading.outdated(settings, "reload")
        return problem.code, problem.hint, problem.subject

    file.write_text("[policy]\ngrace = 2\n")
    assert told() == ("not-reloaded", "to have it read: reload", str(file))
    file.chmod(0o646)
    assert told()[0] == "not-reloaded"
    file.unlink()
    assert told()[0] == "not-reloaded"
    # Where none was, none is missing, and an empty one says as much.
    settings = replace(settings, digest="")
    assert loading.outdated(settings, "reload") == ()
    file.write_text("")
    assert loading.outdated(settings, "reload") == ()


def test_a_place_for_the_catalog_that_is_not_ours_alone_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = {"XPUCACHED_PATHS_STATE": str(tmp_path)}
    tmp_path.chmod(0o775)
    assert load(None, user=True, **state).paths.state == tmp_path
    tmp_path.chmod(0o702)
    assert "is not ours alone" in refusal(None, **state)
    # The host's own is systemd's.
    assert load(None, user=False, **state).paths.state == tmp_path
    if os.geteuid() == 0:
        # What root runs stands there: a user's own group is often his alone, and no other one is root's.
        tmp_path.chmod(0o770)
        os.chown(tmp_path, 0, 4711)
        assert "is not ours alone" in refusal(None, **state)
    tmp_path.chmod(0o700)
    with monkeypatch.context() as patch:
        patch.setattr(os, "geteuid", lambda: tmp_path.stat().st_uid + 1)
        assert "is not ours alone" in refusal(None, **state)
    monkeypatch.setattr(mounts, "network", lambda directory: "nfs4" if directory == tmp_path else "")
    for user in (True, False):
        with pytest.raises(SettingsError, match=r"on a network file system \(nfs4\)"):
            load(None, user=user, **state)


def test_settings_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        load(None).paths.state = Path("/x")  # type: ignore[misc]


@pytest.mark.parametrize("number", [1, 1000, 1024, 3 << 20, (3 << 20) + 1, 1 << 40, 1 << 62])
def test_a_size_that_is_shown_can_be_read(number: int) -> None:
    assert quantities.size(spell_size(number)) == number
    assert len(spell_size(number)) <= len(str(number)) + 1


def test_a_size_is_shown_in_the_largest_unit_of_which_it_is_a_whole_number() -> None:
    assert [spell_size(3 << bits) for bits in (0, 10, 20, 30, 40)] == ["3", "3KiB", "3MiB", "3GiB", "3TiB"]
    assert [spell_size((3 << bits) + 1024) for bits in (20, 30)] == ["3073KiB", "3145729KiB"]


@given(st.integers(0, 10**7))
@hypothesis_settings(database=None, deadline=None)
def test_a_duration_that_is_shown_can_be_read(seconds: int) -> None:
    assert timedelta(seconds=quantities.duration(spell(seconds))) == timedelta(seconds=seconds)


# -- mistakes -----------------------------------------------------------------------------------------------------


def test_a_number_without_end_is_refused_with_a_sentence(file: Path) -> None:
    assert "not TOML: a number has too many digits" in refusal(file, f"x = {'1' * 5000}\n")


@pytest.mark.parametrize(
    ("text", "line", "expected"),
    [
        ("[policy]\ngrace = \n", 2, "not TOML: invalid value"),
        ("[policy\n", 1, "not TOML: "),
        ("\ufeff[policy]\n", 1, "it begins with a byte order mark; save it as UTF-8 without one"),
        ("[log]\nlevel = 'info'\nlevel = 'info'\n", 3, "not TOML: cannot overwrite a value"),
        ('x = """\n\n', 2, "not TOML: "),
        ("[stores]\n\npth = []\n", 3, "stores.pth: unknown key; did you mean paths?"),
        ("[log]\nzzz = 1\n", 2, "log.zzz: unknown key; expected one of level"),
        ("\n[polcy]\ngrace = 1\n", 2, "polcy: unknown key; did you mean policy?"),
        (
            "grace = 1\n",
            1,
            "grace: unknown key; expected one of paths, stores, driver, policy, schedule, throttle, watch, workers,",
        ),
        ("policy = 1\n", 1, "policy: expected a table"),
        ("[[policy]]\ngrace = 1\n", 1, "policy: expected a table"),
        ('[paths]\nstate = "~/x"\n', 2, "paths.state: expected an absolute path"),
        ("[paths]\nstate = 3\n", 2, "paths.state: expected an absolute path"),
        ('[paths]\nstate = "/a\\u0000"\n', 2, "paths.state: expected an absolute path"),
        *(
            (f"[metrics]\nlisten = '{text}'\n", 2, "metrics.listen: expected")
            for text in (
                *("", "on", "9845", ":9845", "127.0.0.1", "127.0.0.1:", "127.0.0.1:0", "127.0.0.1:65536", "[::1]:-1"),
                *("127.0.0.1:09845", "0.0.0.0:9845", "192.168.0.1:9845", "127.0.0.256:9845", "127.1:9845", "[::]:9845"),
                *(
                    "::1:9845",
                    "[::1%lo]:9845",
                    "localhost:9845",
                    "http://127.0.0.1:9845",
                    "127.0.0.1:9845 ",
                    "127.0.0.1:\u0661",
                ),
            )
        ),
        ("[metrics]\nlisten = 9845\n", 2, "metrics.listen: expected"),
        ("[paths]\nsocket_mode = 0o666\n", 2, "paths.socket_mode: expected permissions"),
        ('[paths]\nsocket_mode = "0777"\n', 2, "paths.socket_mode: expected permissions"),
        ('[paths]\nsocket_mode = "0066"\n', 2, "paths.socket_mode: expected permissions"),
        ('[paths]\nsocket_mode = "rw"\n', 2, "paths.socket_mode: expected permissions"),
        ('[paths]\nsocket_mode = "60"\n', 2, "paths.socket_mode: expected permissions"),
        ('[paths]\nsocket_mode = "00600"\n', 2, "paths.socket_mode: expected permissions"),
        ('[paths]\nsocket_mode = "1660"\n', 2, "paths.socket_mode: expected permissions"),
        ('[stores]\nfound = "yes"\n', 2, "stores.found: expected true or false; found 'yes'"),
        ('[stores]\npaths = "/a"\n', 2, "stores.paths: expected an array"),
        ('[stores]\npaths = [\n "/a",\n "b",\n]\n', 2, "stores.paths: expected an absolute path"),
        ("[driver]\nvariables = []\n", 2, "driver.variables: expected a table of variables"),
        ("[driver.variables]\nA = 1\n", 1, "driver.variables: A: expected a string"),
        ('driver.variables."A=B" = "x"\n', 1, "driver.variables: 'A=B' cannot be the name of a variable"),
        ('[driver]\nprobe_timeout = "0s"\n', 2, "expected a duration such as 90s, 10m or 7d, from 1s to 10m"),
        ('[driver]\nprobe_timeout = "unlimited"\n', 2, "driver.probe_timeout: expected a duration"),
        ("[policy]\nkeep_driver_generations = -1\n", 2, "policy.keep_driver_generations: expected"),
        ("[policy]\nkeep_driver_generations = true\n", 2, "expected a whole number; found True"),
        ("[policy]\nkeep_driver_generations = 1.0\n", 2, "expected a whole number; found 1.0"),
        ("[policy]\nattempts = 0\n", 2, "policy.attempts: expected"),
        ("[manners]\nwindow = '22:00-06:00'\n", 1, "manners: unknown key; it is called throttle now"),
        ("[throttle]\npatience = '1h'\n", 2, "throttle.patience: unknown key; it is called max_wait now"),
        ("[watch]\nopens = true\n", 2, "watch.opens: unknown key; it is called loads now"),
        ("[throttle]\nwindow = 'nights'\n", 2, "throttle.window: expected two different times of day"),
        ("[throttle]\nwindow = '22:00-22:00'\n", 2, "throttle.window: expected two different times of day"),
        ("[throttle]\nwindow = '24:00-06:00'\n", 2, "throttle.window: expected two different times of day"),
        ("[throttle]\nwindow = 2200\n", 2, "throttle.window: expected two different times of day"),
        ("[throttle]\ngpu_busy = 0\n", 2, "throttle.gpu_busy: expected whole percent"),
        ("[throttle]\ngpu_busy = 101\n", 2, "throttle.gpu_busy: expected whole percent"),
        ("[throttle]\nio_pressure = 'lots'\n", 2, "throttle.io_pressure: expected whole percent"),
        ("[throttle]\ntasks = 1\n", 2, "throttle.tasks: expected"),
        ("[policy]\nmax_bytes = 0\n", 2, "policy.max_bytes: expected a size above 0"),
        ('[policy]\nmax_bytes = "10 apples"\n', 2, "policy.max_bytes: expected a size above 0"),
        ("[policy]\nmax_bytes = 1.5\n", 2, "policy.max_bytes: expected a size above 0"),
        ("[policy]\nmax_bytes = true\n", 2, "policy.max_bytes: expected a size above 0"),
        ("[policy]\nmax_bytes = 9223372036854775808\n", 2, "policy.max_bytes: expected a size above 0"),
        ('[policy]\ntrash_max_bytes = "unlimited"\n', 2, "policy.trash_max_bytes: expected a size above 0"),
        ("[policy]\nstores = 1\n", 2, "policy.stores: expected a table"),
        ("[policy.stores.here]\ngrace = 1\n", 1, "policy.stores.here: expected an absolute path"),
        ('[policy.stores."/a"]\nuser = 1\n', 2, "policy.stores./a.user: unknown key; expected one of"),
        ('[policy.users.0]\nstore = "/a"\n', 2, "policy.users.0.store: unknown key; expected one of"),
        ("[policy]\nmax_unused = 0\n", 2, 'or "unlimited"; found 0'),
        ("[policy]\ngrace = nan\n", 2, "policy.grace: expected a duration"),
        ("[policy]\ngrace = inf\n", 2, "policy.grace: expected a duration"),
        ("[policy]\ngrace = -1\n", 2, "policy.grace: expected a duration"),
        ("[policy]\ngrace = true\n", 2, "policy.grace: expected a duration"),
        ("[policy]\ngrace = 1979-05-27\n", 2, "policy.grace: expected a duration"),
        ("[schedule]\nscan_interval = 0\n", 2, "schedule.scan_interval: expected a duration"),
        ('[schedule]\nsettle = "2m"\n', 2, "schedule.settle: expected a duration"),
        ('[schedule]\n# a comment\n\n  "evict" = 1\n', 4, "schedule.evict: expected true or false"),
        ("schedule = { prewarm = true, evict = 1 }\n", 1, "schedule.evict: expected true or false"),
        *(
            (f"[workers]\nexclude = {users}\n", 2, "workers.exclude: expected an array of users, by name or number")
            for users in ('"bob"', "[1005]", '["bob smith"]', '["-b"]', '["bob", ""]', f'["{"b" * 65}"]')
        ),
        *(
            (f"[driver]\nstaged = {folders}\n", 2, "driver.staged: expected an array of absolute paths, in which *")
            for folders in ('"/mnt"', "[1]", '["mnt"]', '["/mnt", "/a/**"]', '["/a\\u0000"]')
        ),
        *(
            (f"[bundles]\npull = {places}\n", 2, "bundles.pull: expected an array of places in registries")
            for places in ('"h.example/a:v1"', "[1]", '["h.example"]')
        ),
        ("[bundles]\npush = 1\n", 2, 'bundles.push: expected "off", or a place in a registry'),
        ("[bundles]\npush = 'h.example'\n", 2, 'bundles.push: expected "off", or a place in a registry'),
        ('driver.variables."" = "x"\n', 1, "driver.variables: '' cannot be the name of a variable"),
        ('driver.variables."A\\u0000" = "x"\n', 1, "driver.variables: 'A\\x00' cannot be the name of a variable"),
        ('[driver.variables]\nA = "\\u0000"\n', 1, "driver.variables: A: expected a string"),
        (f"[stores]\npaths = {['/a'] * 1001}\n", 2, "stores.paths: expected at most 1000 of them; found ["),
        (f"[log]\nlevel = '{'l' * 58}'\n", 2, f"error; found '{'l' * 58}'"),
        (f"[log]\nlevel = '{'l' * 59}'\n", 2, f"error; found '{'l' * 59}…"),
        ('[log]\nlevel = "loud"\n', 2, "log.level: expected one of: debug, info, warning, error; found 'loud'"),
    ],
)
def test_a_mistake_is_refused_with_its_line_and_what_was_expected(
    file: Path, text: str, line: int, expected: str
) -> None:
    message = refusal(file, text)

    assert message.startswith(f"{file}:{line}: ")
    assert expected in message
    assert "\n" not in message


def test_all_mistakes_are_told_in_the_order_of_their_lines(file: Path) -> None:
    message = refusal(file, "[policy]\nretry_after = -1\ngrace = -1\n[log]\nlevel = 1\n[x]\n")

    assert [line.split(": ")[0] for line in message.split("\n")] == [f"{file}:{number}" for number in (2, 3, 5, 6)]


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("XPUCACHED_POLICY_GRACE", "soon", "expected a duration such as"),
        ("XPUCACHED_POLICY_ATTEMPTS", "three", "expected a whole number"),
        ("XPUCACHED_POLICY_ATTEMPTS", "0", "expected"),
        ("XPUCACHED_POLICY_ATTEMPTS", "9" * 5000, "expected a whole number"),
        ("XPUCACHED_POLICY_USERS", "[]", "expected a JSON object"),
        ("XPUCACHED_SCHEDULE_EVICT", "maybe", "expected true or false"),
        ("XPUCACHED_DRIVER_VARIABLES", "A=b", "expected a JSON object"),
        ("XPUCACHED_DRIVER_VARIABLES", "[1]", "expected a JSON object"),
        ("XPUCACHED_DRIVER_VARIABLES", '{"A": 1}', "A: expected a string"),
        ("XPUCACHED_DRIVER_VARIABLES", '{"A": "\\ud800"}', "'A': expected text, and not half of a character"),
        ("XPUCACHED_DRIVER_VARIABLES", '{"\\ud800": ""}', "'\\ud800': expected text, and not half of a character"),
        ("XPUCACHED_STORES_PATHS", "/a:b", "expected an absolute path"),
        ("XPUCACHED_SOCKET", "sock", "expected an absolute path"),
        ("XPUCACHED_PATHS_SOCKET_MODE", "7", "expected permissions"),
        ("XPUCACHED_LOG_LEVEL", "loud", "expected one of: debug, info"),
        ("XPUCACHED_LOGLEVEL", "info", "unknown variable; did you mean XPUCACHED_LOG_LEVEL?"),
        ("XPUCACHED_SCHEDULE_SETLE", "1s", "did you mean XPUCACHED_SCHEDULE_SETTLE?"),
        ("XPUCACHED_POLICY", "{}", "unknown variable"),
        ("XPUCACHED_MANNERS_PATIENCE", "1h", "it is called XPUCACHED_THROTTLE_MAX_WAIT now"),
        ("XPUCACHED_WATCH_OPENS", "true", "it is called XPUCACHED_WATCH_LOADS now"),
    ],
)
def test_a_mistake_in_a_variable_names_the_variable(file: Path, name: str, text: str, expected: str) -> None:
    message = refusal(file, "[policy]\ngrace = 5\n", **{name: text})

    assert message.startswith(f"{name}: ")
    assert expected in message


@pytest.mark.flow
def test_each_mistake_stands_in_a_line_of_its_own_where_the_daemon_refuses_to_start(
    file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file.write_text("")
    for name in ("XPUCACHED_ONE", "XPUCACHED_TWO"):
        monkeypatch.setenv(name, "x")

    assert daemon.main(["--user", "--check", "--config", str(file)]) == SettingsError.exit
    said = [line for line in capsys.readouterr().err.splitlines() if "unknown variable" in line]
    assert [("ONE" in line, "TWO" in line) for line in said] == [(True, False), (False, True)]


@pytest.mark.flow
def test_the_daemon_starts_whether_or_not_model_files_answer(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are read by its looks, which have a deadline for each question."""
    file.write_text("")
    served: list[object] = []
    monkeypatch.setattr(daemon, "_begin_log", lambda _config: None)
    monkeypatch.setattr(daemon, "_serve", lambda *given: served.append(given))
    for name in ("models", "owners"):
        monkeypatch.setattr(model_files, name, lambda *_, **__: pytest.fail("it may wait for ever"))

    assert daemon.main(["--user", "--config", str(file)]) == 0
    assert served


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--foo", "x"], "no option --foo"),
        (["--chek"], "no option --chek; did you mean --check?"),
        (["x"], "not understood: x"),
        (["--user", "--system"], "--system: not together with --user; give one of them"),
        (["--config"], "--config: its value is missing"),
    ],
)
def test_the_daemon_refuses_options_as_it_refuses_all(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert daemon.main(words) == RequestError.exit
    assert capsys.readouterr().err == f"xpucached: {said}\nhint: xpucached --help\n"


def test_a_file_that_was_named_must_be_there(tmp_path: Path) -> None:
    assert refusal(tmp_path / "x.toml") == f"{tmp_path}/x.toml: there is no such file"


@pytest.mark.parametrize("what", ["directory", "fifo", "too long", "not UTF-8", "others may write", "a loop of links"])
def test_a_file_that_is_none_is_refused(file: Path, what: str) -> None:
    match what:
        case "directory":
            file.mkdir()
            expected = f"{file}: expected a regular file"
        case "fifo":
            os.mkfifo(file)
            expected = f"{file}: expected a regular file"
        case "too long":
            file.write_bytes(b"#" * ((1 << 20) + 1))
            expected = f"{file}: is too long: expected at most 1048576 bytes"
        case "not UTF-8":
            file.write_bytes(b"# fine\n# \xff\n")
            expected = f"{file}:2: expected UTF-8 text"
        case "others may write":
            file.write_text("")
            file.chmod(0o646)
            expected = f"{file}: others may write to it"
        case _:
            file.symlink_to(file)
            expected = f"{file}: cannot be read: Too many levels of symbolic links"

    assert refusal(file) == expected


def test_a_command_that_mends_it_can_be_pasted_whatever_the_file_is_called(tmp_path: Path) -> None:
    file = tmp_path / "$(touch ran) it's.toml"
    file.write_text("")
    file.chmod(0o646)
    with pytest.raises(SettingsError) as refused:
        load(file)
    assert shlex.split(refused.value.hint) == ["chmod", "go-w", str(file)]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_a_file_of_somebody_else_is_refused(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file.write_text("")
    os.chown(file, 4711, 0)
    assert refusal(file).startswith(f"{file}: belongs to another user (uid 4711)")

    os.chown(file, 0, 4711)
    load(file)
    file.chmod(0o664)
    assert refusal(file) == f"{file}: others may write to it"
    # A worker reads it as its user, and runs what it says.
    with monkeypatch.context() as patch:
        patch.setattr(os, "geteuid", lambda: 4711)
        assert refusal(file) == f"{file}: others may write to it"
        os.chown(file, 4711, 4711)
        load(file)
    os.chown(file, 0, 0)
    load(file)


def test_a_link_to_a_file_is_followed(file: Path, tmp_path: Path) -> None:
    (tmp_path / "real.toml").write_text("[policy]\nattempts = 9\n")
    file.symlink_to(tmp_path / "real.toml")

    assert load(file).policy.attempts == 9


@given(st.text(max_size=200))
@hypothesis_settings(database=None, deadline=None)
def test_no_text_does_more_than_be_refused(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    file = tmp_path_factory.getbasetemp() / "some.toml"
    file.write_bytes(text.encode("utf-8", "surrogatepass"))
    try:
        load(file)
    except SettingsError as error:
        assert error.message.startswith(f"{file}:")  # noqa: PT017 - most texts are refused, not all


@pytest.mark.parametrize(
    ("place", "line"),
    [
        (("a",), 2),
        (("t", "x"), 6),
        (("t", "y"), 9),
        (("t", "u", "v"), 12),
        (("t", "u"), 11),
        (("q.r", "s"), 15),
        (("list",), 17),
        (("no",), 1),
        (("t", "no"), 4),
    ],
)
def test_the_line_of_a_key_is_found(place: tuple[str, ...], line: int) -> None:
    text = (
        '# a = 1\na = 1\n\n[t]\n# x = 0\nx = """\ny = 1\n"""\ny = [\n]\n[t.u]\nv = [1,\n]\n["q.r"]\ns = 1\n\n[[list]]\n'
    )

    assert Toml.parse(Path("/x"), text).line(place) == line


# -- model files --------------------------------------------------------------------------------------------------


@pytest.fixture
def models_d(tmp_path: Path) -> Path:
    """Return a directory for model files."""
    place = tmp_path / "models.d"
    place.mkdir()
    return place


def declare(directory: Path, **texts: str) -> Mapping[str, Model]:
    """Write model files that are in order, and read them."""
    for name, text in texts.items():
        (directory / f"{name}.toml").write_text(text, encoding="utf-8")
    found, problems = model_files.models(directory)
    assert problems == ()
    return {one.name: one for one in found}


def test_a_model_file_says_how_to_run_a_model(models_d: Path) -> None:
    found = declare(
        models_d,
        one="""
            name = "Net-1.0_b"
            command = ["/usr/bin/python3", "app.py", ""]
            directory = "/opt/app"
            variables = { A = "b" }
            timeout = "20m"
            store = "/stores/one"
            priority = 80
            pinned = true
            before = ["app.service", "more@1.service"]
        """,
        two='command = ["/bin/true"]',
    )

    one, two = found["Net-1.0_b"], found["two"]
    assert one.workload.command == ("/usr/bin/python3", "app.py", "")
    assert (one.workload.directory, one.workload.variables) == (Path("/opt/app"), {"A": "b"})
    assert (one.workload.timeout, one.store, one.priority, one.pinned) == (1200.0, Path("/stores/one"), 80, True)
    assert (one.source, one.before) == (str(models_d / "one.toml"), ("app.service", "more@1.service"))
    assert (two.workload.directory, two.workload.timeout, two.store) == (Path("/"), 1800.0, None)
    assert (two.priority, two.pinned) == (50, False)


def test_a_program_is_found_in_the_models_path(models_d: Path, tmp_path: Path) -> None:
    for folder in ("first", "second"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "prog").write_text("")
    (tmp_path / "second" / "prog").chmod(0o755)

    found = declare(
        models_d,
        one=f'command = ["prog"]\nvariables = {{ PATH = "relative:{tmp_path}/first:{tmp_path}/second/" }}',
        two='command = ["sh"]',
    )

    # The first is no program, for it may not be executed.
    assert found["one"].workload.command == (f"{tmp_path}/second/prog",)
    assert found["two"].workload.command[0] in {"/usr/bin/sh", "/bin/sh", "/usr/local/bin/sh"}


def test_only_visible_toml_files_are_models(models_d: Path) -> None:
    for name in ("a.conf", ".b.toml", "c.toml~", "d.toml.dpkg-new"):
        (models_d / name).write_text("nonsense")

    assert model_files.models(models_d) == ((), ())


def test_of_too_many_model_files_the_first_are_read_and_that_is_told(
    models_d: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_files, "_MOST", 2)
    for name in "abc":
        assert len(declare(models_d)) == "abc".index(name)
        (models_d / f"{name}.toml").write_text('command = ["/bin/true"]')

    found, (problem,) = model_files.models(models_d)

    assert [one.name for one in found] == ["a", "b"]
    assert problem.message == f"{models_d}: only the first 2 of 3 model files are read"
    assert problem.subject == f"{models_d}/*.toml"


def test_without_the_directory_there_are_no_models(tmp_path: Path) -> None:
    assert model_files.models(tmp_path / "models.d") == ((), ())


def test_a_directory_that_is_none_is_a_problem(file: Path) -> None:
    file.write_text("")

    found, (problem,) = model_files.models(file)

    assert found == ()
    assert problem.message == f"{file}: model files cannot be read: Not a directory"


LOADED: Final = """loader = "transformers"
python = "/usr/bin/python3"
target = "/srv/model"
inputs = "random"
device = "xpu:*"
precisions = ["float16"]
"""


@pytest.mark.parametrize(
    ("text", "line", "expected"),
    [
        ("", 1, "command: is required"),
        ("priority = 1\n", 1, "command: is required"),
        ('loader = "magic"\n', 1, "loader: expected one of: command, python, transformers, gptq"),
        (LOADED + 'command = ["/bin/true"]\n', 7, "command: the loader transformers has none"),
        (LOADED.replace("/usr/bin/python3", "python3"), 2, "python: expected the absolute path of the interpreter"),
        (LOADED.replace("/srv/model", "model"), 3, "target: expected the absolute path of the model's folder or file"),
        (LOADED.replace('"random"', '""'), 4, "inputs: expected a file with real text or tensors, or prompts"),
        (LOADED.replace('"random"', '"texts"'), 4, "inputs: expected the absolute path of a file"),
        (LOADED.replace('"xpu:*"', '"gpu"'), 5, "device: expected xpu, xpu:0, xpu:*, cuda"),
        (LOADED.replace("float16", "float17"), 6, "precisions: unknown precision 'float17'; known are: float32"),
        (LOADED + 'precision = ["float16"]\n', 7, "precision: unknown key; did you mean precisions?"),
        (LOADED + 'shapes = ["1x2x3"]\n', 7, "shapes: expected BATCHxLENGTH of text"),
        (LOADED + 'shapes = ["0x1"]\n', 7, "shapes: expected sizes such as 1x3x224x224"),
        (LOADED + 'shapes = ["1x1", "1x1"]\n', 7, "shapes: named twice"),
        (LOADED + "steps = 0\n", 7, "steps: expected 1 to 1000"),
        (LOADED + "min_output_tokens = 17\n", 7, "min_output_tokens: expected 0 to new_tokens"),
        (LOADED + "tolerance = 1.5\n", 7, "tolerance: expected a number between 0 and 1"),
        (LOADED + 'memory = "much"\n', 7, "memory: expected a size above 0 such as 512MB or 10GiB"),
        (LOADED + 'caches = ["here"]\n', 7, "caches: expected an absolute path"),
        ('command = ["/bin/true"]\nrequire_device = true\n', 2, "require_device: name the device too"),
        ('command = ["/bin/true"]\ninputs = "/t"\n', 2, "inputs: the loader command has a command instead"),
        ("command = []\n", 1, "command: expected an array of strings"),
        ('command = "/bin/true"\n', 1, "command: expected an array of strings"),
        ('command = ["/bin/true", 1]\n', 1, "command: expected an array of strings"),
        ('command = ["/bin/true", "\\u0000"]\n', 1, "command: expected an array of strings"),
        ('command = ["/bin/true"]\nuser = "me"\n', 2, "user: only in the host's models.d; a model of yours is yours"),
        ('command = ["/bin/true"]\nuser = ""\n', 2, "user: only in the host's models.d; a model of yours is yours"),
        ('command = ["/bin/true"]\nbefore = "a.service"\n', 2, "before: expected an array of full names of units"),
        ('command = ["/bin/true"]\nbefore = ["a"]\n', 2, "before: expected an array of full names of units"),
        (LOADED + 'options = "fast"\n', 7, "options: expected a table of variables"),
        (LOADED.replace('["float16"]', '"float16"'), 6, "precisions: expected an array of strings"),
        (LOADED.replace('"float16"', '"float16", 1'), 6, "precisions: expected an array of strings"),
        ('command = [""]\n', 1, "command: expected an array of strings"),
        ('\ncommand = ["./app"]\n', 2, "command: expected an absolute path, or a program that is in /usr/local/bin:"),
        ('command = ["no-such-program"]\nvariables = {PATH = "/x"}\n', 1, "a program that is in /x; found 'no-such-"),
        ('command = ["/bin/true"]\nname = "a/b"\n', 2, "name: expected a letter or digit"),
        ('command = ["/bin/true"]\nname = ""\n', 2, "name: expected a letter or digit"),
        ('command = ["/bin/true"]\nname = 1\n', 2, "name: expected a string"),
        ('command = ["/bin/true"]\ndirectory = "app"\n', 2, "directory: expected an absolute path"),
        ('command = ["/bin/true"]\n\n[variables]\nA = 1\n', 3, "variables: A: expected a string"),
        ('command = ["/bin/true"]\ntimeout = 0\n', 2, "timeout: expected a duration"),
        ('command = ["/bin/true"]\ntimeout = "2d"\n', 2, "timeout: expected a duration"),
        ('command = ["/bin/true"]\ntimeout = true\n', 2, "timeout: expected a duration"),
        ('command = ["/bin/true"]\ntimeout = nan\n', 2, "timeout: expected a duration"),
        ('command = ["/bin/true"]\nstore = "~/x"\n', 2, "store: expected an absolute path"),
        ('command = ["/bin/true"]\npriority = 101\n', 2, "priority: expected"),
        ('command = ["/bin/true"]\npinned = 1\n', 2, "pinned: expected true or false"),
        ('command = ["/bin/true"]\npined = true\n', 2, "pined: unknown key; did you mean pinned?"),
        ("command = [\n", 1, "not TOML: "),
    ],
)
def test_a_bad_model_file_is_a_problem_and_hides_no_other(models_d: Path, text: str, line: int, expected: str) -> None:
    (models_d / "bad.toml").write_text(text)
    (models_d / "good.toml").write_text('command = ["/bin/true"]')

    found, (problem,) = model_files.models(models_d)

    assert [one.name for one in found] == ["good"]
    assert problem.message.startswith(f"{models_d}/bad.toml:{line}: ")
    assert expected in problem.message
    assert problem.subject == str(models_d / "bad.toml")
    assert problem.code == "bad-settings"


def test_a_model_file_says_how_the_model_is_brought_to_life(models_d: Path) -> None:
    extra = 'shapes = ["1x8"]\nmemory = "2GiB"\ncaches = ["/c"]\ntolerance = 0.5\noptions = { a = "1" }\n'
    found = declare(models_d, loaded=LOADED + extra)

    exercise = found["loaded"].workload.exercise
    assert found["loaded"].workload.command == ()
    assert exercise == RunSpec(
        loader=Loader.TRANSFORMERS,
        python="/usr/bin/python3",
        target="/srv/model",
        inputs="random",
        device="xpu:*",
        precisions=("float16",),
        shapes=("1x8",),
        memory=2 << 30,
        caches=(Path("/c"),),
        tolerance=0.5,
        options={"a": "1"},
    )
    assert [one.label for one in exercise.variants(("xpu:0", "xpu:2"))] == ["xpu:0 float16 1x8", "xpu:2 float16 1x8"]


def test_every_mistake_of_a_model_file_is_told(models_d: Path) -> None:
    (models_d / "bad.toml").write_text("priority = -1\npinned = 1\n")

    _, problems = model_files.models(models_d)

    assert len(problems) == 3
    assert {one.subject for one in problems} == {str(models_d / "bad.toml")}


def test_a_file_whose_name_cannot_be_a_models_needs_one_inside(models_d: Path) -> None:
    (models_d / "a b.toml").write_text('command = ["/bin/true"]')

    found, (problem,) = model_files.models(models_d)

    assert found == ()
    assert "the file's name is the model's: expected a letter or digit" in problem.message
    assert set(declare(models_d, **{"a b": 'name = "ab"\ncommand = ["/bin/true"]'})) == {"ab"}


def test_a_name_that_is_taken_is_a_problem(models_d: Path) -> None:
    (models_d / "a.toml").write_text('command = ["/bin/true"]')
    (models_d / "b.toml").write_text('name = "a"\ncommand = ["/bin/false"]')

    found, (problem,) = model_files.models(models_d)

    assert [one.source for one in found] == [str(models_d / "a.toml")]
    assert problem.message == f"{models_d}/b.toml: the name a is taken by {models_d}/a.toml"


def test_things_that_are_no_files_are_problems(models_d: Path) -> None:
    (models_d / "dangling.toml").symlink_to(models_d / "nothing")
    (models_d / "directory.toml").mkdir()
    os.mkfifo(models_d / "fifo.toml")
    (models_d / "writable.toml").write_text('command = ["/bin/true"]')
    (models_d / "writable.toml").chmod(0o666)

    found, problems = model_files.models(models_d)

    assert found == ()
    assert [one.message.removeprefix(f"{models_d}/") for one in problems] == [
        "dangling.toml: a link to nothing",
        "directory.toml: expected a regular file",
        "fifo.toml: expected a regular file",
        "writable.toml: others may write to it",
    ]


# -- the manual ---------------------------------------------------------------------------------------------------


def manual_section(title: str) -> str:
    """Return the text below a heading of the manual."""
    text = MANUAL.read_text(encoding="utf-8")
    match = re.search(rf"^## {re.escape(title)}$(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    assert match is not None, title
    return match[1]


def manual_keys(title: str) -> list[tuple[str, str]]:
    """Return the keys and defaults in the table of a section."""
    return re.findall(r"^\| `(\w+)` \| (.*?) \|", manual_section(title), re.MULTILINE)


def test_every_key_is_in_the_manual_and_no_other() -> None:
    written = [
        (title[2:-2], key)
        for title in re.findall(r"^## (`\[\w+\]`)$", MANUAL.read_text(encoding="utf-8"), re.MULTILINE)
        for key, _ in manual_keys(title)
    ]

    assert written == [(key.section, key.name) for key in keys()]


def test_the_defaults_in_the_manual_are_those_in_effect() -> None:
    shown = {name: value.removesuffix(" (default)") for name, value in load(None).shown.items()}
    for key in keys():
        ((_, default),) = [one for one in manual_keys(f"`[{key.section}]`") if one[0] == key.name]
        if key.section != "paths":
            assert default.strip('`"') == shown[f"{key.section}.{key.name}"], key


def test_every_key_of_a_model_file_is_in_the_manual_and_no_other() -> None:
    assert [key for key, _ in manual_keys("Model files")] == list(model_files.KEYS)


def test_the_examples_in_the_manual_are_in_order(file: Path, models_d: Path) -> None:
    *configurations, model = re.findall(
        r"^```toml\n(.*?)^```", MANUAL.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    )

    assert len(configurations) == 2
    for one in configurations:
        load(file, one.replace("alice", getpass.getuser()))
    assert set(declare(models_d, resnet=model)) == {"resnet"}


def test_of_many_mistakes_the_first_are_told_and_the_text_is_looked_through_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[str] = []
    statements = toml._statements

    def look(text: str) -> Iterator[tuple[int, tuple[str, ...]]]:
        looked.append(text)
        return statements(text)

    monkeypatch.setattr(toml, "_statements", look)
    file = tmp_path / "xpucached.toml"
    file.write_text("[policy]\n" + "".join(f"unknown{number} = 1\n" for number in range(200)))
    with pytest.raises(SettingsError) as caught:
        loading.load(file, user=True, environ={"HOME": str(tmp_path)})
    told = caught.value.message.split("\n")
    assert told[-1] == "and 150 more mistakes"
    assert len(told) == 51
    assert told[0].startswith(f"{file}:2: policy.unknown0: ")
    assert len(looked) == 1
    many = {f"XPUCACHED_UNKNOWN{number}": "" for number in range(51)}
    assert refusal(None, **many).split("\n")[50:] == ["and 1 more mistake"]
    assert refusal(None, **many, XPUCACHED_Z="").split("\n")[50:] == ["and 2 more mistakes"]
    file.write_text(file.read_text().removeprefix("[policy]\n"))
    _, problems = model_files.models(tmp_path)
    # That it has no command is one more.
    assert [one.message for one in problems[50:]] == ["and 151 more mistakes"]


@pytest.mark.parametrize("place", ["[policy]\ngrace", "[paths]\nstate", "[throttle]\ntasks", "[log]\nlevel"])
@pytest.mark.parametrize("value", ["0x{}", "[0x{}]", "{{ a = 0x{} }}"])
def test_a_number_of_more_digits_than_python_writes_is_refused_with_its_line(
    tmp_path: Path, place: str, value: str
) -> None:
    """In hexadecimal the library reads numbers of any length, and nothing turns these into text, or into a float."""
    number = value.format("f" * 6000)
    file = tmp_path / "xpucached.toml"
    file.write_text(f"{place} = {number}\n")
    with pytest.raises(SettingsError, match=f"{file}:2: "):
        loading.load(file, user=True, environ={"HOME": str(tmp_path), "XDG_RUNTIME_DIR": str(tmp_path)})
    models = tmp_path / "models.d"
    models.mkdir()
    (models / "a.toml").write_text(f"command = ['/bin/true']\ntimeout = {number}\n")
    (models / "b.toml").write_text("command = ['/bin/true']\n")
    found, problems = model_files.models(models)
    assert [one.name for one in found] == ["b"]
    assert [one.subject for one in problems] == [str(models / "a.toml")]


def test_a_key_that_is_nested_deeply_has_its_line_too(tmp_path: Path) -> None:
    read = Toml.parse(tmp_path / "x", "b = 1\n" + "a." * 15 + "a = 1\n")
    assert read.line(("a",) * 2000) == 2


def test_a_key_of_thousands_of_parts_is_refused_before_the_library_reads_it(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []

    def loads(text: str) -> dict[str, object]:
        read.append(text)
        return {}

    monkeypatch.setattr(tomllib, "loads", loads)
    for key in (".".join(["a"] * 500_000), " . ".join(['"a b"', "'c'"] * 9), f"[{'.'.join('a' * 17)}]"):
        text = f"first = 1\n{key}{'' if key[0] == '[' else ' = 1'}\n"
        with pytest.raises(SettingsError, match=r"/x:2: a key has more than 16 parts"):
            Toml.parse(Path("/x"), text)
    assert read == []
    # What a value holds is no key, however it is quoted.
    for value in ('"' + "a." * 50 + '"', "'" + "a." * 50 + "'", "[1.5" + ", 1.5" * 50 + "]", '"' + '\\".a' * 50 + '"'):
        Toml.parse(Path("/x"), f"a.b.c = {value} # {'. ' * 50}\n")
    Toml.parse(Path("/x"), f"{'.'.join('a' * 16)} = 1.5\n")
    assert len(read) == 5


def test_the_line_behind_a_value_of_thousands_of_lines_is_found_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "x = [" + "\n1," * 20_000 + "\n]\ny = '''" + "\nword" * 20_000 + "'''\n[table]\nkey = 5\n"
    parsed: list[int] = []
    loads = tomllib.loads
    read = Toml.parse(Path("/x"), text)

    def noting(some: str) -> dict[str, object]:
        parsed.append(len(some))
        return loads(some)

    monkeypatch.setattr(tomllib, "loads", noting)
    assert read.line(("table", "key")) == text.count("\n")
    assert sum(parsed) < 4 * len(text)


def test_a_folder_that_we_may_not_enter_hides_no_model_and_is_no_mistake_of_others(
    models_d: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (models_d / "good.toml").write_text('command = ["/bin/true"]\nuser = "ann"\n')
    (models_d / "home.toml").write_text(
        'command = ["app"]\nuser = "bob"\n[variables]\nPATH = "/home/bob/bin:/usr/bin"\n'
    )
    (models_d / "long.toml").write_text(f'command = ["app"]\nuser = "bob"\n[variables]\nPATH = "/{"x" * 5000}"\n')
    asking = os.stat

    def shut(place: os.PathLike[str] | str | int, **more: bool) -> os.stat_result:
        if str(place).startswith("/home/bob/"):
            raise PermissionError(errno.EACCES, "Permission denied")
        return asking(place, **more)

    monkeypatch.setattr(os, "stat", shut)
    # The host's daemon sees no home directories; whose user's worker it is, does.
    named, problems = model_files.owners(models_d)
    assert named == {"good": "ann", "home": "bob"}
    assert [Path(one.subject).name for one in problems] == ["long.toml"]
    found, problems = model_files.models(models_d, user="bob")
    assert found == ()
    assert [Path(one.subject).name for one in problems] == ["home.toml", "long.toml"]
