"""After ``verify --fix`` a program runs at its next start, whatever was wrong: with the GPU's real driver."""

from __future__ import annotations

import asyncio
import os
import subprocess
import time
from contextlib import closing
from typing import TYPE_CHECKING, Final

import pytest

from tests import INSTANCE
from tests.kinds import fakes
from tests.kinds.test_neo_store import DAMAGE, RIGHTS
from tests.support.users import mere_user
from xpucached.api import requests
from xpucached.binaries import formats
from xpucached.catalog import Catalog
from xpucached.domain.defects import CHANGED, Effect
from xpucached.domain.jobs import Job, JobState
from xpucached.domain.reports import VerifyReport
from xpucached.kinds.neo import totals
from xpucached.processes.supervised import ProcessStarter
from xpucached.service import Service
from xpucached.service.context import Context
from xpucached.settings import loading

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.support.runtimes import SimulatedGpu
    from xpucached.domain.defects import Defect

pytestmark = [
    pytest.mark.runtime,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files to somebody else"),
]


def _flip(section: bytes) -> Callable[[Path], None]:
    def flip(path: Path) -> None:
        data = path.read_bytes()
        ((at, size),) = [place for name, *place in formats.sections(data) if name.startswith(section)]
        middle = at + size // 2
        path.write_bytes(data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :])

    return flip


def _zeros(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2].ljust(len(data), b"\0"))


def _of_another_gpu(path: Path) -> None:
    (other,) = (fakes.NEO / "acm-g10").rglob("*.cl_cache")
    path.write_bytes(other.read_bytes())


CHANGES: Final[list[tuple[str, Callable[[Path], object], Defect]]] = [
    ("what it says of its kernels", _flip(b".ze_info"), CHANGED),
    ("code", _flip(b".text."), CHANGED),
    ("SPIR-V", _flip(b".spv"), CHANGED),
    ("symbols", _flip(b".symtab"), CHANGED),
    ("appended", lambda path: path.write_bytes(path.read_bytes() + b"tail"), CHANGED),
    ("another GPU's", _of_another_gpu, CHANGED),
]
"""What only who saw an entry before can find."""

ROWS: Final = [*DAMAGE, ("zeros at its end", _zeros, None), *CHANGES, *RIGHTS]


class Patient:
    """A program of which each device program's entry is damaged in another way, and who looks after its cache."""

    def __init__(self, gpu: SimulatedGpu, place: Path) -> None:
        self.gpu = gpu
        self.root = place / "neo_compiler_cache"
        self.root.mkdir()
        self.text = place / "noinc.cl"
        self.text.write_bytes((fakes.NEO / "recorded" / "14393921d7ce9d06.input").read_bytes().rstrip(b"\0"))
        environ = {
            **os.environ,
            "XPUCACHED_STORES_FOUND": "false",
            "XPUCACHED_STORES_PATHS": f"neo:{self.root}",
            "XPUCACHED_PATHS_STATE": str(place / "state"),
            "XPUCACHED_PATHS_SOCKET": str(place / "socket"),
            "XPUCACHED_PATHS_CACHE": str(place / "cache"),
        }
        self.config = loading.load(None, user=True, environ=environ)
        self.catalog = place / "state" / "catalog.sqlite"
        self.catalog.parent.mkdir()

    def run(self, numbers: list[int]) -> tuple[list[str], int]:
        """Have these programs built; give the driver's answers, and how many it compiled."""
        for path in self.root.rglob("stats"):
            path.unlink()
        jobs = [("text", self.text, f"-DN={number}") for number in numbers]
        child = self.gpu.start(jobs, self.root, mere=True)
        try:
            said, _ = child.communicate(timeout=120)
        except subprocess.TimeoutExpired:
            child.kill()
            child.communicate()
            raise
        told = totals.lookups((self.root / "stats").read_bytes())
        assert told is not None
        return said.split(), told.misses

    def verified(self, damage: Callable[[], None]) -> VerifyReport:
        """Look at the cache while it is whole, damage it, and have it verified and mended."""

        async def whole(catalog: Catalog) -> VerifyReport:
            service = Service(Context(self.config, catalog, {}), ProcessStarter(os.environ, INSTANCE))
            await done(service, await service.reconciler.start_scan(requests.ScanStores()))
            damage()
            job = await service.verifier.start(requests.VerifyStores(fix=True), service.status.get)
            report = (await done(service, job)).report
            await service.stop()
            assert isinstance(report, VerifyReport)
            return report

        async def done(service: Service, job: Job) -> Job:
            while job.state in {JobState.QUEUED, JobState.RUNNING}:
                await asyncio.sleep(0.01)
                (job,) = [one for one in service.context.jobs.all() if one.id == job.id]
            assert job.state is JobState.DONE, job
            return job

        with mere_user(), closing(Catalog.open(self.catalog)) as catalog:
            return asyncio.run(whole(catalog))


def test_after_verify_a_program_runs_at_its_next_start_whatever_was_wrong(gpu: SimulatedGpu, tmp_path: Path) -> None:
    patient = Patient(gpu, tmp_path)
    every = [*range(len(ROWS))]
    assert patient.run(every) == (["0"] * len(ROWS), len(ROWS))
    entries = sorted(patient.root.rglob("*.cl_cache"), key=lambda path: path.stat().st_mtime_ns)

    failing = {row[0] for row in DAMAGE if row[2].effect is Effect.FAILS}
    failing |= {"zeros at its end", "what it says of its kernels", "another GPU's"}

    def damage() -> None:
        for path, (_, how, _) in zip(entries, ROWS, strict=True):
            how(path)
            if path.is_file() and not path.is_symlink():
                # What was written just now may not be whole yet.
                os.utime(path, (time.time() - 60, time.time() - 60))
        running = [number for number in every if ROWS[number][0] not in (*failing, "pipe")]
        assert patient.run(running)[0] == ["0"] * len(running)
        for number in every:
            if ROWS[number][0] in failing:
                # It ends with an error, or crashes.
                assert patient.run([number])[0] != ["0"]

    report = patient.verified(damage)
    left = {one.key: one for one in report.findings if one.key is not None and not one.done}
    assert {one.effect for one in left.values()} <= {Effect.HARMLESS, Effect.UNKNOWN}
    assert patient.run(every)[0] == ["0"] * len(ROWS)
    said, compiled = patient.run(every)
    assert said == ["0"] * len(ROWS)
    # Of a link that leaves the file system nobody knows where it leads.
    assert compiled == 1
