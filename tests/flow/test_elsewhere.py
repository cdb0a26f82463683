"""Replay for drivers that are not installed and for GPUs that are not here, with the real compilers."""

from __future__ import annotations

import os
import shutil
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.flow.test_daemon import driven
from tests.flow.test_replay import checksum_and_trace, written
from tests.support.daemons import daemon
from xpucached.domain.stores import FoundStore, Store, StoreOrigin
from xpucached.errors import RequestError
from xpucached.host import other_driver
from xpucached.kinds import sycl
from xpucached.kinds.sycl import preflight, runtimes
from xpucached.processes import driver_probe

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.support.daemons import Daemon
    from tests.support.runtimes import Runtime, SimulatedGpu

SHAPES = {"bmg-g21": "1x5x8", "acm-g10": "8x4x16", "mtl-u": "1x4x16", "lnl-m": "1x2x4"}


@pytest.fixture
def replayer(home: Path, short_dir: Path) -> Iterator[Daemon]:
    """Return a daemon that is not started yet."""
    with daemon(home, short_dir) as one:
        yield one


def looked_after(one: Daemon, *roots: Path) -> None:
    """Start a daemon on a host without a driver, with these stores."""
    one.configure(f"[stores]\npaths = {[str(root) for root in roots]}\n[schedule]\nevict = false\n")
    one.start()


def refusal(one: Daemon, status: int, *options: str) -> str:
    """Call ``xpucachectl replay``, which must end so; give what it said."""
    done = one.ctl("replay", *options, check=status)
    return done.stdout + done.stderr


def content(root: Path) -> dict[str, bytes]:
    """Return every file below a directory but the birth times."""
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file() and not path.name.endswith("_access_time.txt")
    }


def compiled(cache: Path) -> set[str]:
    """Name what the GPU driver has in its own cache."""
    return {path.name for path in cache.rglob("*.l0_cache")}


@pytest.mark.runtime
@pytest.mark.timeout(600)
@pytest.mark.parametrize("device", SHAPES)
def test_what_is_rebuilt_for_a_gpu_is_what_its_runtime_makes(
    device: str, gpu: SimulatedGpu, replayer: Daemon, tmp_path: Path
) -> None:
    theirs, ours = tmp_path / "theirs", tmp_path / "ours"
    created, _ = gpu.run(device, SHAPES[device], theirs, tmp_path / "neo-theirs")
    assert len(created) > 3
    looked_after(replayer, theirs)
    options = ("--driver-root", str(gpu.root), "--device", device)
    places = ("--into", str(ours), "--driver-cache", str(tmp_path / "neo-ours"))
    report = replayer.ask("replay", *options, *places)["report"]
    assert (report["rebuilt"], report["failed"]) == (len(created), 0)  # type: ignore[index]
    assert content(ours) == content(theirs)
    assert compiled(tmp_path / "neo-ours") == compiled(tmp_path / "neo-theirs") != set()
    before = compiled(tmp_path / "neo-ours")
    again, used = gpu.run(device, SHAPES[device], ours, tmp_path / "neo-ours")
    assert (again, used) == (frozenset(), created)
    assert compiled(tmp_path / "neo-ours") == before


@pytest.mark.runtime
@pytest.mark.timeout(600)
def test_one_gpus_entries_serve_another_and_say_so(gpu: SimulatedGpu, replayer: Daemon, tmp_path: Path) -> None:
    here, truth = tmp_path / "here", tmp_path / "truth"
    gpu.run("acm-g10", SHAPES["acm-g10"], here, tmp_path / "neo")
    created, _ = gpu.run("bmg-g21", SHAPES["bmg-g21"], truth, tmp_path / "neo")
    looked_after(replayer, here)
    options = ("replay", "--driver-root", str(gpu.root), "--device", "bmg-g21")
    planned = replayer.ask(*options, "--dry-run")["report"]["plan"]  # type: ignore[index]
    assert {one["to"]["device"] for one in planned["rebuild"]} == {"Intel(R) Graphics [0xe202]"}
    report = replayer.ask(*options)["report"]
    assert (report["rebuilt"], report["failed"]) == (len(created), 0)  # type: ignore[index]
    made = replayer.rows("ls", "--arch", "bmg-g21")
    assert {row["origin"] for row in made} == {"simulated"}
    assert {row["origin"] for row in replayer.rows("ls", "--arch", "acm-g10")} == {"declared"}
    assert {row["key"] for row in made} == set(created)
    assert content(truth).items() <= content(here).items()
    assert gpu.run("bmg-g21", SHAPES["bmg-g21"], here, tmp_path / "neo") == (frozenset(), created)


@pytest.mark.runtime
@pytest.mark.timeout(600)
def test_a_card_by_its_number_has_the_name_that_programs_meet(
    gpu: SimulatedGpu, replayer: Daemon, tmp_path: Path
) -> None:
    gpu.run("bmg-g21", SHAPES["bmg-g21"], tmp_path / "store", tmp_path / "neo")
    looked_after(replayer, tmp_path / "store")
    report = replayer.ask("replay", "--driver-root", str(gpu.root), "--device", "0xe20b")["report"]
    assert report["failed"] == 0  # type: ignore[index]
    devices = {str(row["device"]) for row in replayer.rows("ls")}
    assert devices == {"Intel(R) Graphics [0xe202]", "Intel(R) Arc(TM) B580 Graphics"}


@pytest.mark.runtime
@pytest.mark.timeout(600)
def test_a_driver_that_is_not_installed_yet_is_ready_when_it_is(
    replayer: Daemon, runtime: Callable[[str], Runtime], workload: Path, tmp_path: Path
) -> None:
    first, second = runtime("rt2025.2"), runtime("drv2025.3")
    root = tmp_path / "cache"
    truth, made, _ = checksum_and_trace(first, first, workload, root)
    driven(replayer, first, tmp_path / "driver", f"[stores]\npaths = ['{root}']\n")
    # As in a shell with oneAPI's variables: the installed driver must not be asked along with the unpacked one.
    replayer.variables = {"OCL_ICD_FILENAMES": str(first.driver)}
    replayer.start()
    planned = replayer.ctl("replay", "--driver-root", str(second.root), "--dry-run").stdout
    assert f"would rebuild {made} entries" in planned
    text = replayer.ctl("replay", "--driver-root", str(second.root)).stdout
    assert f"rebuilt {made} entries" in text
    assert f"the SYCL runtime in {first.lib} itself wrote an entry under such a name" in text
    # Nothing of it is gone, and nothing of it goes.
    assert f" {made} for drivers or devices that are not here\n" in replayer.ctl("status").stdout
    assert replayer.ask("evict", "--dry-run")["report"]["plan"]["evict"] == []  # type: ignore[index]
    assert checksum_and_trace(first, second, workload, root) == (truth, 0, made)
    assert checksum_and_trace(first, first, workload, root) == (truth, 0, made)
    assert sorted(str(row["origin"]) for row in replayer.rows("ls")) == ["built-ahead"] * made + ["declared"] * made
    # What compiled once says how long it takes.
    report = replayer.ask("replay", "--driver-root", str(second.root), "--into", str(tmp_path / "x"), "--dry-run")
    assert report["report"]["plan"]["seconds"] > 0  # type: ignore[index]


@pytest.mark.runtime
@pytest.mark.parametrize("name", ["rt2024.2", "rt2025.1", "rt2025.2", "rt2025.3", "rt2026.2"])
def test_a_runtime_is_asked_and_writes_an_entry_under_the_name_that_the_driver_gives(
    name: str, runtime: Callable[[str], Runtime], tmp_path: Path
) -> None:
    real = runtime(name)
    variables = {"LD_LIBRARY_PATH": str(real.lib), "OCL_ICD_FILENAMES": str(real.driver)}
    assert runtimes.folders([], variables)[0] == real.lib
    (answer,) = driver_probe.ask(variables).answers
    assert driver_probe.ask_runtime(real.lib, variables).answers == (answer,)
    cache = tmp_path / "cache"
    assert preflight.build_tiny_program(real.lib, cache, variables, "opencl:cpu")
    found = sycl.scanner.scan(
        FoundStore(Store(sycl.NAME, cache), StoreOrigin.FOUND, "test"), datetime.now(UTC), {}, None
    )
    assert [one.environment for one in found.entries] == [sycl.targets.target_of(answer)]


NAMED_OTHERWISE = r"""
#include <stddef.h>
#include <string.h>
int urLoaderInit(unsigned flags, void *config) { return 0; }
static int one(unsigned room, void **list, unsigned *count) {
    if (list && room) *list = (void *)0x10;
    if (count) *count = 1;
    return 0;
}
int urAdapterGet(unsigned room, void **list, unsigned *count) { return one(room, list, count); }
int urPlatformGet(void *adapter, unsigned room, void **list, unsigned *count) { return one(room, list, count); }
int urDeviceGet(void *platform, int kind, unsigned room, void **list, unsigned *count) {
    return one(room, list, count);
}
static int text(const char *what, size_t room, char *value, size_t *size) {
    if (size) *size = strlen(what) + 1;
    if (value && room > strlen(what)) strcpy(value, what);
    return 0;
}
int urPlatformGetInfo(void *platform, int what, size_t room, char *value, size_t *size) {
    return text(PLATFORM, room, value, size);
}
int urDeviceGetInfo(void *device, int what, size_t room, char *value, size_t *size) {
    switch (what) {
    case 66: return text(DEVICE, room, value, size);
    case 67: return text("Intel(R) Corporation", room, value, size);
    case 69: return text("FULL_PROFILE", room, value, size);
    case 70: return text("OpenCL 9.9", room, value, size);
    default: return text("another version", room, value, size);
    }
}
"""


@pytest.mark.runtime
@pytest.mark.timeout(600)
def test_replay_stops_where_the_runtime_names_the_device_otherwise(
    replayer: Daemon, runtime: Callable[[str], Runtime], filled: Path, tmp_path: Path
) -> None:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler")
    second = runtime("drv2025.3")
    root, beside = tmp_path / "cache", tmp_path / "runtime"
    sources = written(filled, root)
    driven(replayer, second, tmp_path / "driver", f"[stores]\npaths = ['{root}']\n")
    paths = f"LD_LIBRARY_PATH = '{beside}:{second.lib}'"
    text = replayer.config.read_text().replace(f"LD_LIBRARY_PATH = '{second.lib}'", paths)
    replayer.configure(text + "replay = false\n")
    replayer.start()
    (device,) = (one for one in replayer.ask("devices")["environments"])  # type: ignore[attr-defined]
    beside.mkdir()
    (tmp_path / "ur.c").write_text(NAMED_OTHERWISE)
    names = [f'-DPLATFORM="{device["family"]}"', f'-DDEVICE="{device["device"]}"']
    library = beside / "libur_loader.so.0"
    subprocess.run([compiler, "-shared", "-fPIC", "-w", *names, "-o", library, tmp_path / "ur.c"], check=True)
    said = refusal(replayer, 76)
    assert "names the device" in said
    assert "OpenCL 9.9/another version" in said
    assert len(list(root.glob("[0-9]*/*/*/*/0.src"))) == len(sources)


@pytest.mark.parametrize("place", ["above", "above/driver", "above/driver/lib", "above/driver/lib/libigc.so.2.1"])
def test_a_driver_that_others_can_change_is_not_loaded(tmp_path: Path, place: str) -> None:
    lib = tmp_path / "above/driver/lib"
    lib.mkdir(parents=True)
    for name in ("libigdrcl.so", "libigc.so.2.1"):
        (lib / name).write_bytes(b"code")
    (lib / "libigc.so.2").symlink_to("libigc.so.2.1")
    root = tmp_path / "above/driver"

    def found() -> set[str]:
        other_driver._check(root)
        return set(other_driver._walk(root).files)

    assert found() == {"libigdrcl.so", "libigc.so.2"}
    (tmp_path / place).chmod(0o777)
    with pytest.raises(RequestError, match=f"{place} belongs to somebody else, or everybody may write there"):
        found()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to a group that is not its own")
@pytest.mark.parametrize("place", ["lib", "lib/libigc.so.2.1"])
def test_a_driver_that_a_group_of_users_can_change_is_not_loaded_by_root(tmp_path: Path, place: str) -> None:
    root = tmp_path / "driver"
    (root / "lib").mkdir(parents=True)
    for name in ("libigdrcl.so", "libigc.so.2.1"):
        (root / "lib" / name).write_bytes(b"code")
    (root / place).chmod(0o775)
    assert other_driver._walk(root).files
    # Those below a thousand are of the system.
    os.chown(root / place, 0, 1500)
    with pytest.raises(RequestError, match=f"{place} belongs to somebody else, .*, or a group of users"):
        other_driver._walk(root)


def test_what_is_no_driver_and_no_gpu_is_refused(replayer: Daemon, tmp_path: Path) -> None:
    looked_after(replayer, tmp_path / "store")
    empty, open_to_all = tmp_path / "empty", tmp_path / "open"
    empty.mkdir()
    open_to_all.mkdir()
    open_to_all.chmod(0o777)
    assert "there is no driver of Intel's" in refusal(replayer, 69, "--driver-root", str(empty))
    assert "No such file" in refusal(replayer, 66, "--driver-root", str(tmp_path / "nowhere"))
    assert "everybody may write" in refusal(replayer, 64, "--driver-root", str(open_to_all))
    said = refusal(replayer, 64, "--device", "rtx-4090")
    assert "rtx-4090" in said
    assert "bmg-g21" in said
    assert "no driver" in refusal(replayer, 69)
