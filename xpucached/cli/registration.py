"""Door: what is noticed of a model while it is registered, before anything runs.  Looks at files, asks its Python.

Nothing of it is a refusal: what is not there yet may be there when the model is run.
"""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Final

from xpucached import codec
from xpucached.domain.workloads import Loader
from xpucached.printing import plain

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from xpucached.api.requests import AddModel
    from xpucached.domain.host import Host

_LIBRARIES: Final[Mapping[Loader, tuple[str, ...]]] = {
    Loader.TRANSFORMERS: ("torch", "transformers"),
    Loader.GPTQ: ("torch", "transformers", "gptqmodel"),
    Loader.AWQ: ("torch", "transformers", "gptqmodel"),
    Loader.VLLM: ("torch", "vllm"),
    Loader.SENTENCE_TRANSFORMERS: ("torch", "sentence_transformers"),
    Loader.WHISPER: ("torch", "transformers"),
    Loader.DIFFUSERS: ("torch", "diffusers"),
    Loader.TORCHSCRIPT: ("torch",),
    Loader.EXPORT: ("torch",),
}
"""What each loader imports."""

_QUANTIZING: Final = ("torchao", "bitsandbytes")
"""What the precisions import that begin with its name."""

_FIND: Final = """\
import sys
sys.path[:] = [place for place in sys.path if place]
import importlib.util
sys.path[:0] = [place for place in sys.argv[1:2] if place]
for name in sys.argv[2:]:
    if importlib.util.find_spec(name) is None:
        print(name)
"""
"""Print which modules there are not.  None is run: only the packages that a name stands in would be.

The working directory, of which Python itself would load the standard library's modules, counts only where it is named.
"""

_PATIENCE: Final = 10.0

_DRIVERS: Final = ("libze_intel_gpu.so.1", "libigdrcl.so", "libintelocl.so")
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
        yield from _of_modules(asked)


def _of_device(asked: AddModel, host: Host | None) -> Iterator[str]:
    device = asked.exercise.device
    kind, _, number = device.partition(":")
    if device and asked.exercise.loader is Loader.COMMAND and not any("{device}" in word for word in asked.command):
        yield f"no word of its command holds {{device}}, so nothing tells its program to use {device}"
    if host is None or kind != "xpu":
        return
    gpus = sum(one.pci_address is not None for one in host.devices)
    if not gpus:
        yield f"it is meant for {device}, and this host has no GPU that a driver serves"
    elif number.isdecimal() and int(number) >= gpus:
        there = "one GPU, xpu:0" if gpus == 1 else f"{gpus} GPUs, xpu:0 to xpu:{gpus - 1}"
        yield f"it is meant for {device}, and this host has {there}"


def _of_modules(asked: AddModel) -> Iterator[str]:
    """Ask the model's own Python whether it finds what will be imported."""
    exercise = asked.exercise
    names = [*_LIBRARIES.get(exercise.loader, ())]
    names += [name for name in _QUANTIZING if any(one.startswith(f"{name}-") for one in exercise.precisions)]
    own = exercise.loader in {Loader.PYTHON, Loader.TRAIN}
    if own:
        # What stands above a module would be run.
        names.append(exercise.target.partition(":")[0].partition(".")[0])
    if not names:
        return
    from xpucached.processes import child  # noqa: PLC0415 - most models are commands, and have nothing to ask

    python = plain(exercise.python)
    try:
        told = child.run(
            (exercise.python, "-B", "-c", _FIND, str(asked.directory) if own else "", *names),
            variables=child.environment(asked.variables),
            seconds=_PATIENCE,
            directory=asked.directory,
        )
    except (OSError, ValueError) as error:
        yield f"{python} cannot be started: {getattr(error, 'strerror', None) or error}"
        return
    if told.status != 0:
        yield f"{python} was asked for {', '.join(names)}, and {told.words}"
    elif missing := [one for one in told.output.decode("ascii", "replace").split() if one in names]:
        yield f"{python} does not find {' and '.join(missing)} in {plain(str(asked.directory))}"


def brought_driver(program: str, variables: Mapping[str, str]) -> Mapping[str, str]:
    """Return the variables that lead to a driver which a program's own environment brings, as pip puts it there.

    Empty if there is none, or the program has variables that lead to one already.
    """
    if any(variables.get(name) for name in ("OCL_ICD_FILENAMES", "OCL_ICD_VENDORS", "ZE_ENABLE_ALT_DRIVERS")):
        return {}
    libraries = Path(program).parent.parent / "lib"
    driver = next((libraries / name for name in _DRIVERS if _is_file(libraries / name)), None)
    if driver is None or not _is_file(libraries / _LOADER):
        return {}
    before = variables.get("LD_LIBRARY_PATH", "")
    places = before.split(":") if before else []
    found = {} if str(libraries) in places else {"LD_LIBRARY_PATH": ":".join((str(libraries), *places))}
    found["ZE_ENABLE_ALT_DRIVERS" if driver.name == _DRIVERS[0] else "OCL_ICD_FILENAMES"] = str(driver)
    return found


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


def leading(name: str, found: Mapping[str, str], environ: Mapping[str, str]) -> str:
    """Say how programs are led to a driver that was found: for one model, and for all of this user."""
    driver = plain([*found.values()][-1])
    options = " ".join(f"--env {shlex.quote(f'{key}={text}')}" for key, text in found.items())
    table = ", ".join(f"{key} = {codec.dumps(text).decode('ascii')}" for key, text in found.items())
    home = environ.get("XDG_CONFIG_HOME", "")
    file = os.path.join(home if home.startswith("/") else "~/.config", "xpucached/xpucached.toml")  # noqa: PTH118 - of ~
    return (
        f"its environment brings a driver, {driver}, and nothing leads its programs there. For this model:\n"
        f"  xpucachectl model add {name} --replace {options} …  # the rest as before\n"
        f"or for all programs, in {plain(file)}:\n"
        f"  [driver]\n"
        f"  variables = {{ {table} }}"
    )
