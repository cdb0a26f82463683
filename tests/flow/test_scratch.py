"""A child's own directory goes, whatever it left there, and nothing else does."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import tempfile
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import pytest

from tests import REPOSITORY
from tests.flow.test_processes import execute
from tests.flow.test_upkeep import alone
from tests.support import catalogs
from tests.support.builders import sycl_target
from xpucached.api.requests import ReplayEntries
from xpucached.daemon.lock import instance
from xpucached.domain.host import OtherDriver
from xpucached.domain.jobs import ErrorInfo
from xpucached.domain.libraries import SyclRuntime
from xpucached.domain.models import Workload
from xpucached.errors import HostError
from xpucached.host import other_driver
from xpucached.kinds.sycl import preflight
from xpucached.processes import scratch
from xpucached.processes.output import Trace
from xpucached.processes.supervised import ProcessStarter

NO_PLACE: Final = "no temporary directory can be made"

DEEP: Final = """
import os
place = os.environ.get("SYCL_CACHE_DIR") or os.environ["TMPDIR"]
os.makedirs(place, exist_ok=True)
os.chdir(place)
for _ in range(4000):
    os.mkdir("d")
    os.chdir("d")
open("last", "w").close()
"""
"""Deeper than Python recurses, and longer than a path may be."""


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the directory in which temporary ones are made."""
    place = tmp_path / "tmp"
    place.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    return place


def test_whatever_is_left_goes_and_nothing_that_a_link_leads_to(tmp_path: Path, temporary: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").touch()
    with scratch.directory() as place:
        closed = temporary.joinpath(place, "a", "closed")
        closed.mkdir(parents=True)
        (closed / "file").touch()
        (closed / "link").symlink_to(outside)
        os.mkfifo(closed / "pipe")
        closed.chmod(0)
        closed.parent.chmod(0o500)
        temporary.joinpath(place, "link").symlink_to(outside)
    assert list(temporary.iterdir()) == []
    assert list(outside.iterdir()) == [outside / "kept"]


def test_a_tree_of_thousands_of_directories_costs_no_run_its_result(temporary: Path) -> None:
    done = execute((sys.executable, "-c", f"{DEEP}\nprint('done')"), temporary.parent)

    assert (done.outcome, done.output) == (None, "done")
    assert list(temporary.iterdir()) == []


def test_a_runtime_that_leaves_one_is_judged_all_the_same(
    tmp_path: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hostile = tmp_path / "hostile.py"
    hostile.write_text(DEEP)
    monkeypatch.setattr(preflight, "SYCL_CHECK", hostile)
    runtime = SyclRuntime(tmp_path / "libsycl.so.8", "1", 3)
    found = preflight.check(runtime, {}, datetime(2026, 11, 1, tzinfo=UTC))

    assert found.evidence.startswith("a program with a device library")
    assert list(temporary.iterdir()) == []


def test_a_program_s_sockets_have_room_for_their_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel takes 107 bytes of a path, and Ray needs 67 of them behind ``TMPDIR``."""
    monkeypatch.setattr(tempfile, "tempdir", "/tmp")
    program = (
        "import os, socket\n"
        "place = os.environ['TMPDIR'] + '/ray/session_2026-11-27_23-36-10_295114_1234567/sockets'\n"
        "os.makedirs(place)\n"
        "socket.socket(socket.AF_UNIX).bind(place + '/plasma_store')\n"
    )
    starter = ProcessStarter(os.environ, instance(tmp_path))
    workload = Workload((sys.executable, "-c", program), tmp_path, {}, 20)
    done = asyncio.run(starter.execute(workload, {}, Trace(), polite=True))
    assert done.outcome is None, done.output


def test_what_the_host_has_no_room_for_is_told_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # One word of a command may have 128 KiB; the daemon's own child gets it first.
    assert (
        "it could not be started: [Errno 7] Argument list too long" in execute(("a", "b" * (1 << 20)), tmp_path).detail
    )
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "away"))
    assert "it could not be started: [Errno 2] No such file or directory" in execute(("a",), tmp_path).detail


def test_a_replay_that_has_no_place_for_its_compilers_says_so(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refused() -> ErrorInfo | None:
        service = alone(catalog)
        job = await service.replayer.start(ReplayEntries(driver_root=tmp_path, dry_run=True))
        return (await service.context.jobs.wait(job.id, 60)).error

    with closing(catalogs.fresh(home / "catalog.sqlite")) as catalog:
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "away"))
        error = asyncio.run(refused())
    assert error is not None
    assert (error.code, error.message) == ("no-gpu", f"{NO_PLACE}: No such file or directory")
    target = sycl_target("OpenCL", "CPU", "3.0", "1")
    with pytest.raises(HostError, match=NO_PLACE):
        preflight._written(tmp_path, {target}, OtherDriver((target,), "", {}), datetime(2026, 11, 1, tzinfo=UTC), 1.0)
    # As on a full disk, where a directory still may be made.
    (tmp_path / "libigdrcl.so").touch()
    with pytest.raises(HostError, match="away cannot be written: No such file or directory"):
        other_driver.unpacked(tmp_path, None, {}, 1.0, tmp_path / "away")


MOUNTED: Final = """
import os, subprocess, sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from xpucached.processes import scratch
precious, where = Path(sys.argv[1]), sys.argv[3]
os.environ["TMPDIR"] = str(precious.parent)
with scratch.directory() as place:
    at = Path(place, where) if where else Path(place)
    at.mkdir(parents=True, exist_ok=True)
    Path(place, "beside").mkdir(exist_ok=True)
    subprocess.run(["mount", "--bind", precious, at], check=True)
print(sorted(path.name for path in precious.rglob("*")), os.path.ismount(at) or not where or at.exists())
"""


@pytest.mark.parametrize("where", ["d", "d/e/f", ""], ids=["at the top", "below", "over it"])
def test_what_was_mounted_there_from_the_same_file_system_stays(tmp_path: Path, where: str) -> None:
    unshare = shutil.which("unshare")
    if unshare is None or os.geteuid() != 0:
        pytest.skip("only root may mount")
    precious = tmp_path / "precious"
    (precious / "kept" / "inner").mkdir(parents=True)
    (precious / "file").write_text("x")
    repository = REPOSITORY
    inside = [unshare, "--mount", sys.executable, "-c", MOUNTED, str(precious), str(repository), where]
    done = subprocess.run(inside, capture_output=True, text=True, timeout=100, check=False)

    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("['file', 'inner', 'kept']")
    assert sorted(path.name for path in precious.rglob("*")) == ["file", "inner", "kept"]
