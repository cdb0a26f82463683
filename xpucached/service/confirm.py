"""Confirming: whether programs will look where a replay would put what it rebuilds."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import TYPE_CHECKING

from xpucached import host, planning
from xpucached.domain.stores import FoundStore, Store, StoreOrigin
from xpucached.errors import Unconfirmed
from xpucached.kinds import sycl
from xpucached.processes import scratch

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from xpucached.domain.host import OtherDriver
    from xpucached.domain.models import Workload
    from xpucached.domain.targets import Target
    from xpucached.service.inventory import Inventory

log = logging.getLogger(__name__)


async def confirm(
    targets: Collection[Target], driver: OtherDriver, inventory: Inventory, workloads: Sequence[Workload]
) -> str:
    """Let the SYCL runtimes of this host say how they name the devices, and stop if that is not what we would write.

    Each is asked, and then a tiny program is built with it, so that the runtime itself writes one entry, in a
    directory of ours.  ``workloads`` are those of the models that use this driver.  Gives what is known, in a
    sentence.  Raises `Unconfirmed`.
    """
    if not targets:
        return ""
    folders = await asyncio.to_thread(host.runtime_folders, workloads, driver.variables)
    named: set[Target] = set()
    written: set[Target] = set()
    asked: list[str] = []
    for folder in folders:
        timeout = inventory.settings.probe_timeout
        report = await asyncio.to_thread(host.ask_runtime, folder, driver.variables, timeout, command=driver.command)
        for problem in report.problems:
            log.info("a SYCL runtime gave no answer: %s", problem.message)
        ours = frozenset(await asyncio.to_thread(_written, folder, targets, driver, inventory))
        written |= ours
        named |= ours | set(report.environments)
        if ours or report.environments:
            asked.append(str(folder))
    where = ", ".join(asked)
    wrong = planning.contradicted(targets, named)
    if wrong:
        lineages = {one.lineage for one in wrong}
        theirs = ", ".join(sorted(one.identity for one in named if one.lineage in lineages))
        driver_says = ", ".join(one.identity for one in wrong)
        raise Unconfirmed(
            f"the SYCL runtime in {where} names the device {theirs}, the driver {driver_says}: nothing was rebuilt",
            hint="programs would not find it; run the models instead: xpucachectl prewarm --stale",
        )
    if not asked:
        return "no SYCL runtime was found that could confirm the names of the devices"
    unseen = {one.platform for one in targets if one not in named}
    but = f", and does not know {', '.join(sorted(unseen))}" if unseen else ""
    if written.intersection(targets):
        return f"the SYCL runtime in {where} itself wrote an entry under such a name{but}"
    return f"the SYCL runtime in {where} names the devices so{but}"


def _written(folder: Path, targets: Collection[Target], driver: OtherDriver, inventory: Inventory) -> list[Target]:
    """Build a tiny program for each kind of device, and give the environments under which the runtime kept it."""
    timeout = inventory.settings.probe_timeout
    found: list[Target] = []
    for selector in sorted({_selector(one) for one in targets}):
        with scratch.directory() as place:
            root = Path(place, "cache")
            if not host.build_tiny_program(folder, root, driver.variables, selector, timeout, command=driver.command):
                continue
            store = FoundStore(Store(sycl.NAME, root), StoreOrigin.FOUND, "a tiny program")
            entries = sycl.scan(store, inventory.clock(), {}, None).entries
            found += [entry.environment for entry in entries if entry.environment is not None]
    return found


def _selector(environment: Target) -> str:
    """Say which devices a program may see, in the words of ``ONEAPI_DEVICE_SELECTOR``."""
    if "Level-Zero" in environment.platform:
        return "level_zero:gpu"
    return "opencl:gpu" if environment.platform.endswith("Graphics") else "opencl:cpu"
