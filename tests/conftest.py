"""What every test gets: a home of its own, real runtimes where it asks for them, and a check that nothing is left.

The fixtures that a test asks for by name:

``home``        a private home directory; HOME and the XDG variables point into it for every test anyway
``terminal``    nothing; skips where there are no pseudo-terminals
``short_dir``   a private directory with a short path, for unix sockets (their paths end at 107 bytes)
``sycl_store``  a `tests.support.builders.SyclStore` that writes byte-exact entries
``strike``      `tests.support.faults.Faults` for programs that run with its variables
``struck``      a `tests.support.daemons.Daemon` that can be struck so, with one store
``runtimes``    the folder with the real SYCL runtimes
``runtime``     ``runtime("rt2025.2")`` gives a `tests.support.runtimes.Runtime`, ``runtime("drv2025.3")`` a driver
``gpu``         a `tests.support.runtimes.SimulatedGpu`: Intel's GPU driver, and programs that it serves without a GPU
``older_gpu``   the same of 2022
``debian``      the root of a Debian with systemd, for `tests.support.hosts.boot`
``workload``    the demo's workload program: ``python WORKLOAD small|medium|large``
``filled``      a store that ``WORKLOAD small`` filled with ``rt2025.2``, once for all: to be copied, not changed
"""

from __future__ import annotations

import contextlib
import gc
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn

import debian as debian_tool
import psutil
import pytest

from tests import REPOSITORY
from tests.support import bundles, forks, hosts, leftovers
from tests.support.builders import SyclStore
from tests.support.daemons import Daemon, daemon
from tests.support.faults import Faults, build, with_store
from tests.support.runtimes import ONE_THREAD, Runtime, SimulatedGpu, look_up
from tests.support.scheduling import pytest_xdist_make_scheduler  # noqa: F401 - a hook
from tests.support.sharing import made_once
from tests.support.timeouts import pytest_runtest_setup, pytest_runtest_teardown  # noqa: F401 - the same
from tests.support.torches import Torch, loaded

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

# Read before any test runs, because each test starts with these variables gone.
RUNTIMES: Final = Path(os.environ.get("XPUCACHED_RUNTIMES") or REPOSITORY / ".runtimes").absolute()
MUST_HAVE_RUNTIMES: Final = bool(os.environ.get("CI")) or os.environ.get("XPUCACHED_REQUIRE_RUNTIMES") == "1"
MUST_HAVE_GPU_DRIVER: Final = os.environ.get("XPUCACHED_REQUIRE_GPU_DRIVER") == "1"
DEBIAN: Final = Path(os.environ.get("XPUCACHED_DEBIAN") or RUNTIMES / "debian").absolute()
MUST_HAVE_SYSTEMD: Final = os.environ.get("XPUCACHED_REQUIRE_SYSTEMD") == "1"

LONGEST: Final = (
    *("test_deb.py", "test_daemon.py", "test_model_runner.py", "test_upkeep.py", "test_systemd.py", "test_replay.py"),
    *("test_faults.py", "test_driver_replay.py", "test_dependencies.py", "test_deaths.py", "test_catalog.py"),
    *("test_field_reports.py", "test_sycl_damage.py", "test_absent.py", "test_fuzz.py", "test_neighbours.py"),
    *("test_cli.py", "test_demo.py", "test_elsewhere.py", "test_watching.py", "test_endless_output.py"),
    *("test_preselect.py", "test_drivers.py", "test_clocks.py", "test_inherited.py", "test_processes.py"),
    *("test_bundles.py", "test_stress.py", "test_neo_damage.py", "test_driver_cache.py", "test_odd_users.py"),
    *("test_compare.py", "test_trash.py", "test_neo_healed.py", "test_sycl_parts.py", "test_attacks.py"),
    *("test_worker_floods_host_daemon.py", "test_sycl_mending.py", "test_stop_and_start.py", "test_trial.py"),
    *("test_other_user.py", "test_silent_file_systems.py", "test_farm.py", "test_containers.py", "test_looking.py"),
    *("test_page.py", "test_top.py"),
)
"""Files that take long, the longest first: begun in this order, no process waits at the end for another one's last."""

UNIT: Final = tuple(REPOSITORY / "tests" / folder for folder in ("unit", "kinds"))
"""Folders whose tests, but for those marked ``runtime`` or ``flow``, need nothing outside their own process."""

# Whatever steers a SYCL runtime, a driver, the daemon or systemd's talk with it must not reach a test from outside.
FOREIGN: Final = (
    "CL_CONFIG_",
    "INTEL_",
    "LD_LIBRARY_PATH",
    "LISTEN_",
    "NEO_",
    "NOTIFY_SOCKET",
    "OCL_ICD_",
    "ONEAPI_",
    "SYCL_",
    "TRITON_",
    "TORCHINDUCTOR_",
    "WATCHDOG_",
    "XDG_",
    "XPUCACHED_",
    "ZE_",
)

SIGNALS: Final = (signal.SIGHUP, signal.SIGINT, signal.SIGIO, signal.SIGPIPE, signal.SIGTERM, signal.SIGXFSZ)

# How long an ended child may take to be reaped, or an ended thread to go.  Only a failing test waits that long.
PATIENCE: Final = 20.0


os.environ.update(ONE_THREAD)

# Where `python3` is a script that looks for one (pyenv's), each of hundreds of programs would wait for it.
os.environ["PATH"] = f"{sys.base_prefix}/bin:{os.environ['PATH']}"

# Thousands of tests are collected, and none is garbage: to look for some takes a third of the time, in each process.
gc.disable()


def pytest_collection_finish() -> None:
    """Look for garbage from now on, but not in what was collected, and seldom: most tests leave none."""
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)
    gc.enable()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Do not even read what holds no unit test where only these are asked for."""
    other = collection_path.name.startswith("test_") and not _is_unit(collection_path)
    return True if other and config.getoption("markexpr") == "unit" else None


def _is_unit(path: Path) -> bool:
    return any(path.is_relative_to(folder) for folder in UNIT)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the unit tests, and put what takes long first; within that the order stays random."""
    places = {name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: places.get(item.path.name, len(places)))
    for item in items:
        if _is_unit(item.path) and not any(item.iter_markers("runtime")) and not any(item.iter_markers("flow")):
            item.add_marker("unit")


@pytest.fixture(scope="session", autouse=True)
def _remembered(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep the digests of what lies in the runtimes' folder for the daemons of all tests."""
    digests = made_once(tmp_path_factory, "digests", lambda _: None)
    forks.REMEMBERED[:] = (os.path.realpath(RUNTIMES), str(digests))
    yield
    forks.REMEMBERED.clear()


@pytest.fixture(autouse=True)
def _unit(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no unit test start a process."""

    def refuse(*_: object, **__: object) -> NoReturn:
        pytest.fail("a unit test starts a process: mark it with `flow`")

    if request.node.get_closest_marker("unit") is not None:
        monkeypatch.setattr(subprocess.Popen, "__init__", refuse)
        monkeypatch.setattr(os, "fork", refuse)


@pytest.fixture(autouse=True)
def _same_directory() -> Iterator[None]:
    """Fail the test that goes elsewhere and does not come back."""
    before = Path.cwd()
    yield
    after = Path.cwd()
    os.chdir(before)
    assert after == before


@pytest.fixture(autouse=True)
def _same_signals() -> Iterator[None]:
    """Fail the test that leaves a signal with another effect: it would end the process much later, without a word."""
    before = {number: signal.getsignal(number) for number in SIGNALS}
    yield
    after = {number: signal.getsignal(number) for number in SIGNALS}
    for number, handler in before.items():
        signal.signal(number, handler)
    assert after == before


@pytest.fixture(autouse=True)
def home(_same_directory: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a private home directory, to which HOME and the XDG variables point."""
    for name in [name for name in os.environ if name.startswith(FOREIGN)]:
        monkeypatch.delenv(name)
    place = f"{tmp_path}/home"
    for folder in ("", "/.local"):
        os.mkdir(place + folder)  # noqa: PTH102 - for each of thousands of tests, a Path takes three times as long
    for variable, folder in (
        ("XDG_CACHE_HOME", "/.cache"),
        ("XDG_CONFIG_HOME", "/.config"),
        ("XDG_DATA_HOME", "/.local/share"),
        ("XDG_STATE_HOME", "/.local/state"),
        ("XDG_RUNTIME_DIR", "/run"),
    ):
        os.mkdir(place + folder, 0o700 if folder == "/run" else 0o777)  # noqa: PTH102 - the same
        monkeypatch.setenv(variable, place + folder)
    monkeypatch.setenv("HOME", place)
    return Path(place)


@pytest.fixture(autouse=True)
def _nothing_left_behind(home: Path) -> Iterator[None]:
    """Fail the test that leaves a child process or a thread; children are ended so that the next test can trust it."""
    threads = set(threading.enumerate())
    children = set(_children())
    yield
    leftovers.close()
    deadline = time.monotonic() + PATIENCE
    while True:
        left = [child for child in _children() if child not in children]
        running = [thread for thread in threading.enumerate() if thread not in threads and thread.is_alive()]
        if not left and not running:
            return
        if time.monotonic() > deadline:
            break
        time.sleep(0.02)
    names = [_describe(child) for child in left] + [f"thread {thread.name}" for thread in running]
    for child in left:
        child.kill()
        child.wait(PATIENCE)
    leftovers.let_go(running)
    pytest.fail("left behind: " + "; ".join(names))


def _children() -> list[psutil.Process]:
    # To ask every process of the host for its parent takes longer than most tests.
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        if set(_descendants(os.getpid())) <= forks.pids():
            return []
    found = psutil.Process().children(recursive=True)
    # What runs in a machine is its own business: it ends with the machine.
    theirs = {one.pid for root in found if root.pid in hosts.RUNNING for one in (root, *_below(root))}
    return [one for one in found if one.pid not in theirs | forks.pids()]


def _descendants(pid: int) -> Iterator[int]:
    """Yield what a process started and what those did, as a kernel tells that was built for it."""
    for thread in os.listdir(f"/proc/{pid}/task"):
        for child in map(int, Path(f"/proc/{pid}/task/{thread}/children").read_text("ascii").split()):
            yield child
            yield from _descendants(child)


def _below(process: psutil.Process) -> list[psutil.Process]:
    try:
        return process.children(recursive=True)
    except psutil.Error:
        return []


def _describe(child: psutil.Process) -> str:
    try:
        return f"process {child.pid} ({child.status()}): {' '.join(child.cmdline())}"
    except psutil.Error:
        return f"process {child.pid}"


@pytest.fixture
def terminal() -> None:
    """See that there are terminals to be had: a chroot without /dev/pts has none."""
    try:
        pair = os.openpty()
    except OSError as error:
        pytest.skip(f"no terminal to be had: {error}")
    for descriptor in pair:
        os.close(descriptor)


@pytest.fixture
def short_dir() -> Iterator[Path]:
    """Return a private directory whose path is short enough for unix sockets."""
    place = Path(tempfile.mkdtemp(prefix="xpu-"))
    yield place
    shutil.rmtree(place)


@pytest.fixture
def sycl_store(tmp_path: Path) -> SyclStore:
    """Return an empty SYCL store, below the test's own directory."""
    return SyclStore(tmp_path / "libsycl_cache")


@pytest.fixture(scope="session")
def _strike(tmp_path_factory: pytest.TempPathFactory) -> Faults:
    """Return the faults of all tests: what was loaded with their variables stays from one to the next."""
    return build(tmp_path_factory.mktemp("faults"))


@pytest.fixture
def strike(_strike: Faults) -> Iterator[Faults]:
    """Return faults for programs that run with its variables."""
    yield _strike
    _strike.stop()
    _strike.set_clock(0)


@pytest.fixture
def struck(home: Path, short_dir: Path, strike: Faults, sycl_store: SyclStore) -> Iterator[Daemon]:
    """Return a daemon that can be struck, with one store."""
    with daemon(home, short_dir) as one:
        one.variables = strike.variables
        with_store(one, sycl_store)
        yield one


@pytest.fixture(scope="session")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a bundle of one entry; the key that signed it lies beside."""
    pytest.importorskip("cryptography")
    from xpucached.bundle import trust  # noqa: PLC0415 - an extra

    place = tmp_path_factory.mktemp("signed")
    trust.keygen(place / "key")
    return bundles.signed(place / "bundle", str(place / "key.key"))


@pytest.fixture(scope="session")
def runtimes() -> Path:
    """Return the folder with the real SYCL runtimes."""
    if not RUNTIMES.is_dir():
        _lacking(f"no SYCL runtimes at {RUNTIMES}")
    return RUNTIMES


@pytest.fixture(scope="session")
def runtime(runtimes: Path) -> Callable[[str], Runtime]:
    """Return real runtimes by name."""

    def by_name(name: str) -> Runtime:
        found = look_up(runtimes, name)
        return found if found is not None else _lacking(f"{name} is not (wholly) installed in {runtimes}")

    return by_name


@pytest.fixture(scope="session")
def torch(runtimes: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Torch]:
    """Return an interpreter with a real torch, and small models made with it."""
    found = look_up(runtimes, "torch")
    if found is None:
        _lacking(f"torch is not (wholly) installed in {runtimes}")
    with (
        tempfile.TemporaryDirectory(prefix="xpu-") as short,
        loaded(found.python, tmp_path_factory.mktemp("torch"), Path(short, "torch")) as one,
    ):
        yield one


@pytest.fixture(scope="session")
def workload() -> Path:
    """Return the workload program."""
    return REPOSITORY / "demo" / "workload.py"


@pytest.fixture(scope="session")
def filled(runtime: Callable[[str], Runtime], workload: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give a store as a real program filled it, for those who copy it: to compile it takes longer than their tests."""
    first = runtime("rt2025.2")

    def fill(place: Path) -> None:
        variables = first.environment(place / "cache") | {"HOME": str(place)}
        words = (first.python, "-W", "ignore", workload, "small")
        subprocess.run(words, env=variables, check=True, capture_output=True)

    return made_once(tmp_path_factory, "filled", fill) / "cache"


@pytest.fixture(scope="session")
def gpu(runtimes: Path, runtime: Callable[[str], Runtime]) -> SimulatedGpu:
    """Return Intel's GPU driver, and a runtime whose programs it serves without a GPU."""
    return SimulatedGpu(gpu_driver(runtimes / "gpu-driver"), runtime("rt2025.3"))


@pytest.fixture(scope="session")
def older_gpu(runtimes: Path, runtime: Callable[[str], Runtime]) -> SimulatedGpu:
    """Return the same driver as it was in 2022."""
    return SimulatedGpu(gpu_driver(runtimes / "gpu-driver-older", " --older"), runtime("rt2025.3"))


def gpu_driver(root: Path, options: str = "") -> Path:
    """Return the folder with a GPU driver; skip what asks for it if there is none."""
    if not (root / "xpucached-gpu-driver.json").is_file():
        missing = root / "xpucached-gpu-driver.missing"
        reason = missing.read_text("utf-8").strip() if missing.is_file() else f"it is not in {root}"
        hint = f"no GPU driver: {reason}; run: python3 tools/gpu_driver.py {root}{options}"
        if MUST_HAVE_GPU_DRIVER:
            pytest.fail(hint)
        pytest.skip(hint)
    return root


@pytest.fixture(scope="session")
def debian() -> Path:
    """Return the root of a Debian with systemd."""
    suite = hosts.SUITES.get(sys.version_info[:2], debian_tool.SUITE)
    root = debian_tool.root(DEBIAN, suite)
    reason = hosts.why_not(root if debian_tool.is_finished(root) else None)
    if not reason:
        return root
    missing = DEBIAN / debian_tool.REASON
    if missing.is_file():
        reason = f"{reason}: {missing.read_text('utf-8').strip()}"
    hint = f"no machine with systemd: {reason}; run: python3 tools/debian.py {DEBIAN} --suite {suite}"
    if MUST_HAVE_SYSTEMD:
        pytest.fail(hint)
    pytest.skip(hint)


def _lacking(reason: str) -> NoReturn:
    hint = f"{reason}; run: python3 tools/runtimes.py {RUNTIMES} --test"
    if MUST_HAVE_RUNTIMES:
        pytest.fail(hint)
    pytest.skip(hint)
