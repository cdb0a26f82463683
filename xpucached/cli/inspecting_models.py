"""Door: what a daemon knows that `inspect` tells: the model that is asked about, costs, stores and devices."""

from __future__ import annotations

import os
import re
import shutil
import time
from typing import TYPE_CHECKING, Final

from msgspec import Struct
from msgspec.structs import replace

from xpucached.api import requests
from xpucached.cli import connect
from xpucached.cli.bars import told_what_is_read
from xpucached.domain.models import check_name
from xpucached.domain.stores import StoreOrigin
from xpucached.domain.workloads import Loader
from xpucached.errors import NotFound, RequestError, XpucachedError
from xpucached.inspection import devices, environments
from xpucached.inspection.report import Inspector

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Mapping
    from pathlib import Path

    from xpucached.api.client import Client
    from xpucached.cli.output import Output
    from xpucached.domain.host import Device
    from xpucached.domain.inspection import Inspection
    from xpucached.domain.models import ModelStatus
    from xpucached.domain.names import ModelName
    from xpucached.inspection.devices import AskedDevice

_VERSION: Final = re.compile(r"(?<!\d)\d++\.\d++\.\d++")
"""From its beginning, and in one way alone: who answers may say as many digits as he likes."""
_PAGES: Final = 50
"""Of a daemon's entries so many pages are looked at …"""
_SECONDS: Final = 30.0
"""… and none after so many seconds: root asks other users' daemons, too."""


class Told(Struct, frozen=True):
    """What a daemon tells: nothing where none answers."""

    versions: tuple[str, ...] = ()
    rate: float | None = None
    kept_in: tuple[str, ...] = ()
    used: Mapping[bytes, float] | None = None
    devices: tuple[Device, ...] = ()  #: those of the host, and of drivers to which models are led
    meant: tuple[AskedDevice, ...] = ()  #: those that are asked about, if nobody names one


def told(options: Namespace, path: Path) -> tuple[list[Path], Told]:
    """Return what is to be read, and what a daemon tells of it: of a model, if there is no such path.

    Raises `NotFound` if there is neither.
    """
    there = os.path.lexists(path)
    known = Told()
    found: ModelStatus | None = None
    try:
        client, hosts = connect.reach(options)
        with client:
            if not there:
                if options.of:
                    hint = f"as {options.of}, without --of"
                    raise RequestError("a model's files are read by its own user", hint=hint)
                found = _model(client, options.target)
            if not hosts:
                known = asked(client, found)
    except XpucachedError as error:
        if not there and os.sep in options.target:
            hint = "name a file, a wheel, a folder or a model"
            raise NotFound(f"{options.target}: {_why_absent(path)}", hint=hint) from error
        if not there:
            message = f"{options.target}: {_why_absent(path)}, and no model that is known here: {error.message}"
            raise NotFound(message, hint=error.hint) from error
    return ([path] if found is None else places(found)), replace(known, meant=of_host_or_model(found, known))


def of_model(output: Output, name: ModelName, limit: float) -> Inspection | None:
    """Look through what a model's program brings, for so many seconds; None if its files cannot be read from here."""
    if output.options.of:
        # Root does not go where another user's paths lead.
        return None
    model = output.client.call(requests.GetModel(name=name)).value
    told = asked(output.client, model)
    found = of_host_or_model(model, told)
    kept = told.kept_in
    try:
        with told_what_is_read(quiet=output.options.quiet) as tell:
            one = Inspector(found, rate=told.rate, used=told.used, kept_in=kept, tell=tell, limit=limit)
            return one.inspect(name, places(model))
    except NotFound:
        return None


def _model(client: Client, name: str) -> ModelStatus:
    try:
        checked = check_name(name)
    except ValueError as error:
        raise RequestError(str(error)) from error
    return client.call(requests.GetModel(name=checked)).value


def of_host_or_model(model: ModelStatus | None, known: Told) -> tuple[AskedDevice, ...]:
    """Return the devices that a model's newest run used; without a model, or as long as none told, this host's."""
    if model is None:
        return devices.here(known.versions)
    if model.exercise.device == "cpu":
        return (devices.CPU,)
    run = model.run if model.run is not None and model.run.workload == model.workload else None
    used = devices.used(run.environments if run is not None else (), known.devices, known.versions)
    # Where there is no GPU it runs on the processor.
    return used or devices.here(known.versions) or (devices.CPU,)


def places(model: ModelStatus) -> list[Path]:
    """Return where the libraries of a model's program lie.  Raises `NotFound`."""
    exercise = model.exercise
    command = [exercise.python] if exercise.python else model.command
    if exercise.loader is Loader.LLAMA_CPP:
        # Its Python only starts one of these.
        named = [exercise.options["program"]] if "program" in exercise.options else ["llama-completion", "llama-cli"]
        path = model.variables.get("PATH")
        command = [next((one for one in named if shutil.which(one, path=path)), named[0])]
    return environments.places(command, model.directory, model.variables)


def asked(client: Client, model: ModelStatus | None) -> Told:
    """Ask for what this host has measured.  Raises what a daemon refuses with."""
    host = client.call(requests.ListDevices()).value
    versions = tuple(text for one in host.environments for text in _VERSION.findall(one.device))
    kept = tuple(
        f"{one.kind}: {one.store}"
        for one in client.call(requests.ListStores()).value
        if one.origin is StoreOrigin.MANAGED
    )
    spent, compiled, after = 0.0, 0, None
    used: dict[bytes, float] = {}
    until = time.monotonic() + _SECONDS
    for _ in range(_PAGES):
        page = client.call(requests.ListEntries(after=after, model=model.name if model else None)).value
        for one in page.entries:
            # Without a model nobody asks for them, and whoever answers says how long they are.
            for kernel in one.entry.kernels if model is not None else ():
                name = kernel.name.encode()
                used[name] = used.get(name, 0) + one.entry.image_size / len(one.entry.kernels)
            if one.cost is not None and one.entry.image_size:
                spent, compiled = spent + one.cost, compiled + one.entry.image_size
        after = page.next
        if after is None or time.monotonic() > until:
            break
    rate = spent / compiled if compiled else _of_runs(client, model)
    met = (*host.devices, *(device for driver in host.drivers for device in driver.devices))
    return Told(versions, rate, kept, used if model else None, met)


def _of_runs(client: Client, model: ModelStatus | None) -> float | None:
    """Return the seconds for a byte that a model's own run took; None if there was none that tells."""
    if model is None or model.cold_seconds is None or model.warm_seconds is None:
        return None
    page = client.call(requests.ListEntries(model=model.name)).value
    compiled = sum(one.entry.image_size for one in page.entries)
    spent = model.cold_seconds - model.warm_seconds
    return spent / compiled if page.next is None and compiled and spent > 0 else None


def _why_absent(path: Path) -> str:
    """Say why nothing can be read there: that there is nothing, or that it may not be looked at."""
    try:
        path.lstat()
    except FileNotFoundError:
        return "no such file"
    except OSError as error:
        return (error.strerror or "it cannot be read").lower()
    return "it came while it was looked for"
