"""Door: what is noticed of a model while it is registered, before anything runs.  Looks at files, asks its Python.

Nothing of it is a refusal: what is not there yet may be there when the model is run.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

from xpucached import codec, mounts, printing
from xpucached.domain.workloads import Loader
from xpucached.printing import plain, quoted

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from xpucached.api.requests import AddModel
    from xpucached.domain.host import Host
    from xpucached.domain.models import ModelStatus

_DRIVERS: Final = ("libze_intel_gpu.so.1", "libigdrcl.so", "libintelocl.so")
_LEADING: Final = ("OCL_ICD_FILENAMES", "OCL_ICD_VENDORS", "ZE_ENABLE_ALT_DRIVERS")
_LOADER: Final = "libOpenCL.so.1"


def notes(asked: AddModel, host: Host | None, *, own: bool) -> Iterator[str]:
    """Yield what may not be as it is meant, a sentence each.

    Without ``own`` the model is another user's, whose programs we do not start.
    """
    if asked.store is not None:
        try:
            asked.store.stat()
        except FileNotFoundError:
            yield f"there is no directory {plain(str(asked.store))} yet; the first run makes the store there"
        except OSError as error:
            yield f"whether {plain(str(asked.store))} is there cannot be seen from here: {error.strerror}"
    yield from _of_device(asked, host)
    if own:
        from xpucached.cli import dry_imports  # noqa: PLC0415 - only here is something started

        yield from dry_imports.notes(asked)


def _of_device(asked: AddModel, host: Host | None) -> Iterator[str]:
    device = asked.exercise.device
    kind, _, number = device.partition(":")
    # Who says cpu says that it needs none of ours, and many a program uses the processor without being told.
    if (
        kind in {"xpu", "cuda"}
        and asked.exercise.loader is Loader.COMMAND
        and not any("{device}" in word for word in asked.command)
    ):
        yield f"no word of its command holds {{device}}, so nothing tells its program to use {device}"
    if host is None or kind != "xpu":
        return
    gpus = sum(one.pci_address is not None for one in host.devices)
    if not gpus:
        yield f"it is meant for {device}, and this host has no GPU that a driver serves"
    elif number.isdecimal() and int(number) >= gpus:
        there = "one GPU, xpu:0" if gpus == 1 else f"{gpus} GPUs, xpu:0 to xpu:{gpus - 1}"
        yield f"it is meant for {device}, and this host has {there}"


def brought_driver(program: str, variables: Mapping[str, str]) -> Mapping[str, str]:
    """Return the variables that lead to a driver which a program's own environment brings, as pip puts it there.

    Empty if there is none, or the program has variables that lead to one already.
    """
    if any(map(variables.get, _LEADING)):
        return {}
    libraries = Path(mounts.real(Path(program).parent)).parent / "lib"
    driver = next((libraries / name for name in _DRIVERS if _is_file(libraries / name)), None)
    if driver is None or not _is_file(libraries / _LOADER):
        return {}
    before = variables.get("LD_LIBRARY_PATH", "")
    places = before.split(":") if before else []
    found = {} if str(libraries) in places else {"LD_LIBRARY_PATH": ":".join((str(libraries), *places))}
    found["ZE_ENABLE_ALT_DRIVERS" if driver.name == _DRIVERS[0] else "OCL_ICD_FILENAMES"] = str(driver)
    return found


def leads_to_a_device(model: ModelStatus, environ: Mapping[str, str], command: Sequence[str] = ()) -> str:
    """Say how the programs of a model that has no device get one, or how to say that they need none.

    With a ``command`` that is all of what the model was registered with, the line to type is a whole one.
    """
    name = quoted(model.name)
    rest = f"-- {printing.command(command)}" if command else "…  # the rest as before"
    if found := brought_driver(model.exercise.python or next(iter(model.command), ""), model.variables):
        return _leading(f"xpucachectl model add {name} --replace", rest, found, environ)
    if model.exercise.loader is not Loader.COMMAND or model.exercise.device or any(map(model.variables.get, _LEADING)):
        return ""
    return (
        "no driver was found for its programs, and it is not run without one. If they need none (OpenVINO or"
        f" torch.compile on the processor):\n  xpucachectl model add {name} --replace --device cpu {rest}"
    )


def _leading(again: str, rest: str, found: Mapping[str, str], environ: Mapping[str, str]) -> str:
    driver = plain([*found.values()][-1])
    options = " ".join(f"--env {quoted(f'{key}={text}')}" for key, text in found.items())
    table = ", ".join(f"{key} = {codec.dumps(text).decode('ascii')}" for key, text in found.items())
    home = environ.get("XDG_CONFIG_HOME", "")
    file = os.path.join(home if home.startswith("/") else "~/.config", "xpucached/xpucached.toml")  # noqa: PTH118 - of ~
    return (
        f"its environment brings a driver, {driver}, and nothing leads its programs there. For this model:\n"
        f"  {again} {options} {rest}\n"
        f"or for all programs, in {plain(file)}, which is read again after systemctl --user reload xpucached\n"
        "(or kill -HUP, where you started it yourself):\n"
        f"  [driver]\n"
        f"  variables = {{ {table} }}"
    )


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False
