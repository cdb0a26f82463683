"""Record: the last survey of this host, and the history of what it offered."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypedDict

import sqlalchemy as sa
from sqlalchemy.dialects.sqlite import insert

from xpucached.catalog import targets
from xpucached.catalog.tables import CHANGE_ENVIRONMENTS, CHANGES, ENVIRONMENTS, HOST, Moment
from xpucached.domain.host import Device, DriverChange, DriverFile, DriverInUse, Host, Problem
from xpucached.domain.names import Architecture, ModelName
from xpucached.domain.targets import Target

if TYPE_CHECKING:
    from collections.abc import Iterable

log = logging.getLogger(__name__)

#: Changes that are kept: years of updates, and an end to it if a device comes and goes with every minute.
KEPT: Final = 1000


def record(connection: sa.Connection, host: Host) -> DriverChange | None:
    """Keep this survey as the last; give what it changed, if it was not the first and anything came or went."""
    first = connection.execute(sa.select(HOST.c.id)).first() is None
    before = {
        targets.value(row): row.id
        for row in connection.execute(sa.select(ENVIRONMENTS).where(ENVIRONMENTS.c.present.is_(True)))
    }
    views: dict[str, Host | DriverInUse] = {"": host, **{one.id: one for one in host.drivers}}
    known = {
        one: device.architecture for view in views.values() for device in view.devices for one in device.environments
    }
    numbers = targets.ensure(connection, {one: known.get(one) for one in host.offered})
    offered = list(numbers.values())
    c = ENVIRONMENTS.c
    surveyed = sa.literal(host.surveyed, Moment)
    # It was there until just now: between two surveys that find the same nothing is written.
    connection.execute(
        sa.update(ENVIRONMENTS).values(present=False, last=surveyed).where(c.present.is_(True), c.id.not_in(offered))
    )
    connection.execute(
        sa.update(ENVIRONMENTS)
        .values(present=True, first=sa.func.coalesce(c.first, surveyed), last=surveyed)
        .where(c.id.in_(offered))
    )
    targets.note_drivers(
        connection, {(id_, numbers[one.fingerprint]) for id_, view in views.items() for one in view.environments}
    )
    survey = {"surveyed": host.surveyed, "document": _document(host)}
    connection.execute(
        insert(HOST).values(id=1, **survey).on_conflict_do_update(index_elements=[HOST.c.id], set_=survey)
    )
    appeared = tuple(one for one in host.offered if one not in before)
    vanished = tuple(one for one in before if one.fingerprint not in numbers)
    if first or not (appeared or vanished):
        return None
    change = connection.execute(
        sa.insert(CHANGES).values(at=host.surveyed, stamp=host.stamp).returning(CHANGES.c.id)
    ).scalar_one()
    connection.execute(
        sa.insert(CHANGE_ENVIRONMENTS),
        [{"change_id": change, "environment_id": numbers[one.fingerprint], "appeared": True} for one in appeared]
        + [{"change_id": change, "environment_id": before[one], "appeared": False} for one in vanished],
    )
    connection.execute(sa.delete(CHANGES).where(CHANGES.c.id <= change - KEPT))
    return DriverChange(host.surveyed, host.stamp, appeared, vanished)


def last(connection: sa.Connection) -> Host | None:
    """Give the last survey; None if there is none, or if another version wrote it in another shape."""
    document = connection.execute(sa.select(HOST.c.document)).scalar()
    if document is None:
        return None
    try:
        return _host(document)
    except (KeyError, TypeError, ValueError):
        # The next survey, which every start begins with, takes its place: no reason not to start.
        log.warning("the last survey in the catalog cannot be read, it waits for the next")
        return None


def changes(connection: sa.Connection, limit: int) -> tuple[DriverChange, ...]:
    """Give the newest changes, newest first."""
    return tuple(
        DriverChange(
            row.at, row.stamp, _side(connection, row.id, appeared=True), _side(connection, row.id, appeared=False)
        )
        for row in connection.execute(sa.select(CHANGES).order_by(CHANGES.c.id.desc()).limit(limit)).all()
    )


def _side(connection: sa.Connection, change: int, *, appeared: bool) -> tuple[Target, ...]:
    c = CHANGE_ENVIRONMENTS.c
    rows = connection.execute(
        sa.select(ENVIRONMENTS)
        .join(CHANGE_ENVIRONMENTS, c.environment_id == ENVIRONMENTS.c.id)
        .where(c.change_id == change, c.appeared.is_(appeared))
        .order_by(ENVIRONMENTS.c.id)
    )
    return tuple(targets.value(row) for row in rows)


# -- the survey as JSON -------------------------------------------------------------------------------------------


class _Device(TypedDict):
    name: str
    architecture: str
    pci_address: str | None
    pci_id: str | None
    kernel_driver: str | None
    kernel_driver_version: str | None
    render_node: str | None
    environments: list[list[str]]


class _File(TypedDict):
    path: str
    target: str
    version: str | None
    size: int
    modified: str
    build_id: str | None
    package: str | None


class _View(TypedDict):
    stamp: str
    devices: list[_Device]
    driver: list[_File]
    environments: list[list[str]]
    problems: list[list[str]]


class _DriverInUse(_View):
    variables: dict[str, str]
    models: list[str]


class _Survey(_View):
    surveyed: str
    boot: str
    kernel: str
    drivers: list[_DriverInUse]


def _document(host: Host) -> _Survey:
    return {
        "surveyed": host.surveyed.isoformat(),
        "boot": host.boot,
        "kernel": host.kernel,
        **_view_row(host),
        "drivers": [
            {"variables": dict(one.variables), "models": list(one.models), **_view_row(one)} for one in host.drivers
        ],
    }


def _view_row(host: Host | DriverInUse) -> _View:
    return {
        "stamp": host.stamp,
        "devices": [
            {
                "name": one.name,
                "architecture": one.architecture,
                "pci_address": one.pci_address,
                "pci_id": one.pci_id,
                "kernel_driver": one.kernel_driver,
                "kernel_driver_version": one.kernel_driver_version,
                "render_node": str(one.render_node) if one.render_node is not None else None,
                "environments": _strings(one.environments),
            }
            for one in host.devices
        ],
        "driver": [
            {
                "path": str(one.path),
                "target": str(one.target),
                "version": one.version,
                "size": one.size,
                "modified": one.modified.isoformat(),
                "build_id": one.build_id,
                "package": one.package,
            }
            for one in host.driver
        ],
        "environments": _strings(host.environments),
        "problems": [[one.code, one.message, one.hint, one.subject] for one in host.problems],
    }


def _strings(some: Iterable[Target]) -> list[list[str]]:
    return [[one.platform, one.device, one.version, one.driver] for one in some]


def _environments(some: list[list[str]]) -> tuple[Target, ...]:
    return tuple(Target(*one) for one in some)


@dataclass(frozen=True, slots=True)
class _Seen:
    """What a host and a driver in use have in common."""

    stamp: str
    devices: tuple[Device, ...]
    driver: tuple[DriverFile, ...]
    environments: tuple[Target, ...]
    problems: tuple[Problem, ...]


def _host(survey: _Survey) -> Host:
    seen = _seen(survey)
    return Host(
        surveyed=datetime.fromisoformat(survey["surveyed"]),
        boot=survey["boot"],
        kernel=survey["kernel"],
        stamp=seen.stamp,
        devices=seen.devices,
        driver=seen.driver,
        environments=seen.environments,
        problems=seen.problems,
        # Surveys from before there were several have none.
        drivers=tuple(_driver_in_use(one) for one in survey.get("drivers", [])),
    )


def _driver_in_use(row: _DriverInUse) -> DriverInUse:
    seen = _seen(row)
    return DriverInUse(
        dict(row["variables"]),
        tuple(ModelName(name) for name in row["models"]),
        seen.stamp,
        seen.devices,
        seen.driver,
        seen.environments,
        seen.problems,
    )


def _seen(survey: _View) -> _Seen:
    return _Seen(
        stamp=survey["stamp"],
        devices=tuple(
            Device(
                name=one["name"],
                architecture=Architecture(one["architecture"]),
                pci_address=one["pci_address"],
                pci_id=one["pci_id"],
                kernel_driver=one["kernel_driver"],
                kernel_driver_version=one["kernel_driver_version"],
                render_node=Path(one["render_node"]) if one["render_node"] is not None else None,
                environments=_environments(one["environments"]),
            )
            for one in survey["devices"]
        ),
        driver=tuple(
            DriverFile(
                path=Path(one["path"]),
                target=Path(one["target"]),
                version=one["version"],
                size=one["size"],
                modified=datetime.fromisoformat(one["modified"]),
                build_id=one["build_id"],
                package=one["package"],
            )
            for one in survey["driver"]
        ),
        environments=_environments(survey["environments"]),
        problems=tuple(Problem(*one) for one in survey["problems"]),
    )
