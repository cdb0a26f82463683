"""When drivers are asked, and with which variables."""

from __future__ import annotations

import asyncio
import errno
import os
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from tests.support import catalogs
from tests.support.builders import sycl_target
from xpucached.catalog.models import add_model
from xpucached.catalog.surveys import driver_changes, record_survey
from xpucached.domain.host import Device, DriverFile, Host, ProbeReport, Problem
from xpucached.domain.models import Model, Workload
from xpucached.domain.names import Architecture, ModelName
from xpucached.errors import CatalogError, HostError
from xpucached.host import gpu_devices
from xpucached.host import survey as host_survey
from xpucached.processes import driver_probe
from xpucached.render import host as render
from xpucached.render.text import TextStyle
from xpucached.service import survey
from xpucached.service.context import Context
from xpucached.service.survey import Surveyor
from xpucached.settings import loading

if TYPE_CHECKING:
    from collections.abc import Mapping

    from xpucached.settings import Settings


def settings(variables: str) -> Settings:
    return loading.load(None, user=True, environ={**os.environ, "XPUCACHED_DRIVER_VARIABLES": variables})


def test_a_driver_is_asked_again_with_other_variables_though_its_files_stayed(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Mapping[str, str]] = []

    def ask(variables: Mapping[str, str], *_: object) -> ProbeReport:
        asked.append(dict(variables))
        return ProbeReport()

    monkeypatch.setattr(driver_probe, "ask", ask)
    monkeypatch.setattr(survey, "driver_files", lambda _: ())

    async def surveyed(context: Context) -> list[str]:
        surveyor = Surveyor(context)
        found = []
        for variables in ("{}", "{}", '{"NEOReadDebugKeys": "1"}', '{"NEOReadDebugKeys": "1"}', "{}"):
            context.settings = settings(variables)
            await surveyor.survey()
            found.append(context.present.signature)
        return found

    with closing(catalogs.fresh(home / "catalog.sqlite")) as catalog:
        first, second, third, fourth, last = asyncio.run(surveyed(Context(settings("{}"), catalog, {})))
    assert asked == [{}, {"NEOReadDebugKeys": "1"}, {}]
    assert first == second == last
    assert third == fourth == f"{first}-{third.partition('-')[2]}" != first


def test_of_many_models_of_one_program_its_driver_is_looked_for_once(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[str] = []
    real = survey._looked

    def looking(model: Model, *given: object) -> object:
        looked.append(model.name)
        return real(model, *given)  # type: ignore[arg-type] # whatever that takes

    monkeypatch.setattr(survey, "_looked", looking)
    monkeypatch.setattr(survey, "driver_files", lambda _: ())
    programs: list[tuple[str, tuple[str, ...], dict[str, str]]]
    programs = [(f"m{number:03}", ("/bin/true", str(number)), {}) for number in range(100)]
    programs += [("n-other", ("/bin/false",), {}), ("n-led", ("/bin/true",), {"LD_LIBRARY_PATH": "/opt"})]
    with closing(catalogs.fresh(home / "catalog.sqlite")) as catalog:
        for name, command, variables in programs:
            catalog.write(add_model, Model(ModelName(name), Workload(command, tmp_path, variables)))
        assert Surveyor(Context(settings("{}"), catalog, {}))._led(()) == ()
    assert sorted(looked) == ["m000", "n-led", "n-other"]


def test_a_driver_that_did_not_answer_is_asked_again_by_looks_alone(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Mapping[str, str]] = []
    files: tuple[DriverFile, ...] = ()

    def ask(variables: Mapping[str, str], *_: object) -> ProbeReport:
        asked.append(variables)
        return ProbeReport(problems=(Problem("probe-hung", "it said nothing"),))

    monkeypatch.setattr(driver_probe, "ask", ask)
    monkeypatch.setattr(survey, "driver_files", lambda _: files)

    async def counted(surveyor: Surveyor) -> list[int]:
        nonlocal files
        found = []
        for retry in (False, False, True, False):
            await surveyor.survey(retry=retry)
            found.append(len(asked))
        now = datetime(2026, 5, 4, 12, tzinfo=UTC)
        files = (DriverFile(Path("/d/libintelocl.so"), Path("/d/1"), None, 1, now, None, None),)
        await surveyor.survey(retry=False)
        return [*found, len(asked)]

    with closing(catalogs.fresh(home / "catalog.sqlite")) as catalog:
        assert asyncio.run(counted(Surveyor(Context(settings("{}"), catalog, {})))) == [1, 1, 2, 2, 3]


def test_a_driver_that_offers_nothing_is_asked_again_though_its_files_stayed(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it lacks may be a library of another package, that comes without a change of its own files."""
    asked: list[Mapping[str, str]] = []
    now = datetime(2026, 5, 4, 12, tzinfo=UTC)
    loader = DriverFile(Path("/d/libOpenCL.so.1"), Path("/d/libOpenCL.so.1"), None, 1, now, None, None)
    driver = DriverFile(Path("/d/libintelocl.so"), Path("/d/libintelocl.so"), None, 1, now, None, None)
    files: tuple[DriverFile, ...] = (loader,)

    def ask(variables: Mapping[str, str], *_: object) -> ProbeReport:
        asked.append(variables)
        return ProbeReport(problems=(Problem("no-opencl", "libimf.so: cannot open shared object file"),))

    def targets(host: Host) -> Host:
        return replace(host, environments=(sycl_target("OpenCL", "CPU", "1", "1"),) if len(asked) > 3 else ())

    monkeypatch.setattr(driver_probe, "ask", ask)
    monkeypatch.setattr(survey, "driver_files", lambda _: files)
    monkeypatch.setattr(survey, "with_targets", targets)

    async def counted(surveyor: Surveyor) -> list[int]:
        nonlocal files
        found = []
        for here in ((loader,), (loader, driver)):
            files = here
            for retry in (True, True, False, True, True):
                await surveyor.survey(retry=retry)
                found.append(len(asked))
        return found

    with closing(catalogs.fresh(home / "catalog.sqlite")) as catalog:
        counts = asyncio.run(counted(Surveyor(Context(settings("{}"), catalog, {}))))
    assert counts == [1, 1, 1, 1, 1, 2, 3, 3, 4, 4]


def test_a_driver_that_does_not_answer_for_another_gpu_is_not_asked_at_each_look(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it said of the one before stays known, and is no sign that something has changed since it was asked."""
    asked: list[Mapping[str, str]] = []
    gpu = Device("A770", Architecture("acm-g10"), "0000:03:00.0", "0x56a0", "xe", render_node=tmp_path / "renderD128")

    def ask(variables: Mapping[str, str], *_: object) -> ProbeReport:
        asked.append(variables)
        return ProbeReport(problems=(Problem("probe-hung", "it said nothing"),) if len(asked) > 1 else ())

    monkeypatch.setattr(driver_probe, "ask", ask)
    monkeypatch.setattr(survey, "driver_files", lambda _: ())

    async def counted(surveyor: Surveyor) -> list[int]:
        found = []
        for here in (gpu, replace(gpu, kernel_driver="vfio-pci")):
            for module in (gpu_devices, host_survey):
                monkeypatch.setattr(module, "gpus", lambda *_, here=here: (here,))
            for retry in (False, False, True):
                await surveyor.survey(retry=retry)
                found.append(len(asked))
        return found

    with closing(catalogs.fresh(home / "catalog.sqlite")) as catalog:
        assert asyncio.run(counted(Surveyor(Context(settings("{}"), catalog, {})))) == [1, 1, 1, 2, 2, 3]


def test_a_driver_is_asked_again_when_programs_can_reach_another_gpu_though_its_files_stayed(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A daemon may start before udev has let its user in; and who lets go of a GPU is not told by any file."""
    asked: list[Mapping[str, str]] = []
    node = tmp_path / "renderD128"
    gpu = Device("A770", Architecture("acm-g10"), "0000:03:00.0", "0x56a0", "vfio-pci")

    def ask(variables: Mapping[str, str], *_: object) -> ProbeReport:
        asked.append(variables)
        return ProbeReport()

    monkeypatch.setattr(driver_probe, "ask", ask)
    monkeypatch.setattr(survey, "driver_files", lambda _: ())

    async def counted(surveyor: Surveyor) -> list[int]:
        found = []
        for here in (gpu, replace(gpu, kernel_driver="xe"), replace(gpu, kernel_driver="xe", render_node=node)):
            for there in (False, True) if here.render_node else (False,):
                if there:
                    node.touch()
                for module in (gpu_devices, host_survey):
                    monkeypatch.setattr(module, "gpus", lambda *_, here=here: (here,))
                for _again in range(2):
                    await surveyor.survey()
                found.append(len(asked))
        node.unlink()
        await surveyor.survey()
        return [*found, len(asked)]

    with closing(catalogs.fresh(home / "catalog.sqlite")) as catalog:
        assert asyncio.run(counted(Surveyor(Context(settings("{}"), catalog, {})))) == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("cancelled", [False, True])
def test_a_driver_is_asked_again_whose_answer_came_to_nothing(
    home: Path, monkeypatch: pytest.MonkeyPatch, *, cancelled: bool
) -> None:
    """The disk with the catalog was full, or nobody waited for it any more: it is no answer that is known."""
    gpu = Device("A770", Architecture("acm-g10"), "0000:03:00.0", "0x56a0", "vfio-pci")
    fails = False

    def here(device: Device) -> None:
        for module in (gpu_devices, host_survey):
            monkeypatch.setattr(module, "gpus", lambda *_: (device,))

    def record(*given: object) -> None:
        if fails:
            raise CatalogError("the disk is full")
        record_survey(*given)  # type: ignore[arg-type] # whatever that takes

    def targets(host: Host) -> Host:
        reached = any(one.kernel_driver == "xe" for one in host.devices)
        return replace(host, environments=(sycl_target("Level-Zero", "A770", "1.6", "1"),) if reached else ())

    monkeypatch.setattr(driver_probe, "ask", lambda *_: ProbeReport())
    monkeypatch.setattr(survey, "driver_files", lambda _: ())
    monkeypatch.setattr(survey, "with_targets", targets)
    monkeypatch.setattr(survey, "record_survey", record)

    async def surveyed(context: Context) -> None:
        nonlocal fails
        surveyor = Surveyor(context)
        here(gpu)
        await surveyor.survey()
        assert context.present.offered == ()
        here(replace(gpu, kernel_driver="xe"))
        if cancelled:
            loop, looking = asyncio.get_running_loop(), asyncio.create_task(surveyor.survey())
            with monkeypatch.context() as patched:
                patched.setattr(surveyor, "_led", lambda _files: loop.call_soon_threadsafe(looking.cancel))
                with pytest.raises(asyncio.CancelledError):
                    await looking
        else:
            fails = True
            with pytest.raises(CatalogError):
                await surveyor.survey()
            fails = False
        await surveyor.survey()
        assert len(context.present.offered) == 1

    with closing(catalogs.fresh(home / "catalog.sqlite")) as catalog:
        asyncio.run(surveyed(Context(settings("{}"), catalog, {})))


def test_a_driver_whose_files_cannot_be_looked_at_now_is_no_other_one(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = datetime(2026, 5, 4, 12, tzinfo=UTC)
    files = (DriverFile(Path("/d/libintelocl.so"), Path("/d/1"), None, 1, now, None, None),)
    monkeypatch.setattr(driver_probe, "ask", lambda *_: ProbeReport())
    monkeypatch.setattr(survey, "driver_files", lambda _: files)

    def full(_: object) -> tuple[DriverFile, ...]:
        raise OSError(errno.EMFILE, "Too many open files")

    async def surveyed(context: Context) -> None:
        surveyor = Surveyor(context)
        await surveyor.survey()
        known = context.host
        monkeypatch.setattr(survey, "driver_files", full)
        with pytest.raises(HostError, match="cannot be looked at: Too many open files"):
            await surveyor.survey()
        assert known is not None
        assert context.host is known

    with closing(catalogs.fresh(home / "catalog.sqlite")) as catalog:
        asyncio.run(surveyed(Context(settings("{}"), catalog, {})))


@pytest.mark.parametrize("by", ["variables", "interpreter"])
def test_what_several_models_meet_stays_known_while_the_files_of_their_driver_are_silent(
    home: Path, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    silent, target = False, sycl_target("OpenCL", "CPU", "3.0", "1")
    led = DriverFile(Path("/d/libintelocl.so"), Path("/d/1"), None, 1, datetime(2026, 5, 4, tzinfo=UTC), None, None)

    program, variables = "/bin/true", {"OCL_ICD_FILENAMES": "/d/libintelocl.so"}
    if by == "interpreter":
        program, variables = f"{home}/bin/python", {}
        (home / "lib").mkdir()
        (home / "lib" / "libOpenCL.so.1").touch()

    def files(given: Mapping[str, str]) -> tuple[DriverFile, ...]:
        is_led = "OCL_ICD_FILENAMES" in given or str(home) in given.get("LD_LIBRARY_PATH", "")
        if silent and is_led:
            raise TimeoutError(errno.ETIMEDOUT, "its file system does not answer")
        return (led,) if is_led else ()

    monkeypatch.setattr(driver_probe, "ask", lambda *_: ProbeReport())
    monkeypatch.setattr(survey, "driver_files", files)
    monkeypatch.setattr(survey, "with_targets", lambda host: replace(host, environments=(target,) * len(host.driver)))

    async def met(context: Context) -> list[tuple[int, ...]]:
        nonlocal silent
        surveyor, found = Surveyor(context), []
        for now in (False, True, True, True, False):
            silent = now
            await surveyor.survey()
            found.append(tuple(len(context.present.seen_by(ModelName(name)).environments) for name in "abc"))
        return found

    with closing(catalogs.fresh(home / "catalog.sqlite")) as catalog:
        for name in "abc":
            catalog.write(add_model, Model(ModelName(name), Workload((program, name), Path("/"), variables)))
        assert asyncio.run(met(Context(settings("{}"), catalog, {}))) == [(1, 1, 1)] * 5
        assert catalog.read(driver_changes) == ()


def test_a_change_is_as_old_as_the_survey_that_found_it_whichever_driver_changed(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The host's own driver is not asked again when only one changed to which models' own variables lead."""
    now = start = datetime(2026, 5, 4, 12, tzinfo=UTC)
    asked: list[str] = []
    led = [DriverFile(Path("/d/libintelocl.so"), Path("/d/1"), None, 1, start, None, None)]

    def ask(variables: Mapping[str, str], *_: object) -> ProbeReport:
        asked.append(variables.get("OCL_ICD_FILENAMES", ""))
        return ProbeReport()

    def targets(host: Host) -> Host:
        release = host.driver[0].target.name if host.driver else "own"
        return replace(host, environments=(sycl_target("OpenCL", "CPU", "3.0", release),))

    monkeypatch.setattr(driver_probe, "ask", ask)
    monkeypatch.setattr(survey, "driver_files", lambda variables: led if "OCL_ICD_FILENAMES" in variables else ())
    monkeypatch.setattr(survey, "with_targets", targets)

    async def surveyed(context: Context) -> None:
        nonlocal now
        surveyor = Surveyor(context)
        await surveyor.survey()
        now = start + timedelta(minutes=3)
        led[0] = replace(led[0], target=Path("/d/2"))
        await surveyor.survey()
        now += timedelta(minutes=1)
        await surveyor.survey()

    with closing(catalogs.fresh(home / "catalog.sqlite")) as catalog:
        variables = {"OCL_ICD_FILENAMES": "/d/libintelocl.so"}
        catalog.write(add_model, Model(ModelName("net"), Workload(("/bin/true",), Path("/"), variables)))
        context = Context(settings("{}"), catalog, {}, lambda: now)
        asyncio.run(surveyed(context))
        (change,) = catalog.read(driver_changes)
    assert asked == ["", "/d/libintelocl.so", "/d/libintelocl.so"]
    # The host's own driver has no device, and models are warmed with the other one.
    shown = render.devices(replace(context.present, environments=()), TextStyle(start))
    assert shown.startswith("no devices by the host's own driver\n")
    (problem,) = host_survey._problems((), (), has_gpu=False)
    assert "nothing can be warmed" not in problem.message
    assert [one.toolchain for one in (*change.vanished, *change.appeared)] == ["1", "2"]
    assert change.at == context.present.surveyed == start + timedelta(minutes=3)
