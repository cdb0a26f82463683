"""Decide: with which variables a model's programs run, and which an application needs to find what was warmed."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

from xpucached import deadlines
from xpucached.domain.workloads import Loader
from xpucached.kinds.variables import CHOICES, FURTHER, KNOWN, OURS, STEPS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from xpucached.domain.models import Model
    from xpucached.settings import Settings

_GRAPHS: Final = "TORCHINDUCTOR_FX_GRAPH_CACHE"
_OF: Final = {_GRAPHS: "TORCHINDUCTOR_CACHE_DIR"}
"""What means something only together with a directory, and the variable that says which."""


def _holds_something(place: Path) -> bool:
    try:
        return deadlines.ask(place, lambda: next(place.iterdir(), None) is not None)
    except OSError:
        return False


def steering(settings: Settings, base: Mapping[str, str]) -> Mapping[str, str]:
    """Return what decides what all programs compile: of the daemon's own variables, and by the configuration."""
    return {**{name: text for name, text in base.items() if name in STEPS}, **settings.driver.variables}


def given(settings: Settings, model: Model) -> Mapping[str, str]:
    """Return what the configuration gives all programs, and what was said with the model."""
    return {**settings.driver.variables, **model.workload.variables}


def said(settings: Settings, variables: Mapping[str, str]) -> Mapping[str, str]:
    """Return what was said with a model, without what `env` put into the shell in which it was registered.

    That is what the configuration gives all programs anyway, and what leads to directories of models that are ours.
    """
    place = settings.paths.cache / "models"
    ours = {name for name in FURTHER if place in Path(variables.get(name, "")).parents}
    ours |= {name for name, other in _OF.items() if other in ours}
    given_anyway = settings.driver.variables.items()
    return {name: text for name, text in variables.items() if name not in ours and (name, text) not in given_anyway}


def own(settings: Settings, model: Model) -> Path:
    """Return where compilers that are no kind of ours cache for a model that says nothing else."""
    return settings.paths.cache / "models" / model.name


def further(settings: Settings, model: Model) -> Mapping[str, str]:
    """Return what leads compilers that are no kind of ours to the model's own directories; its own words come first."""
    place = own(settings, model)
    led = {name: str(place / folder) for name, folder in FURTHER.items()}
    led[_GRAPHS] = "1"
    return {name: text for name, text in led.items() if name not in given(settings, model)}


def caches(settings: Settings, model: Model) -> tuple[tuple[str, Path], ...]:
    """Return where a model's programs cache besides stores, and what names it: ``--cache``, a variable, or nothing."""
    said, ours = given(settings, model), further(settings, model)
    named = [(name, Path(said[name])) for name in FURTHER if name in said]
    led = [("", Path(ours[name])) for name in FURTHER if name in ours]
    watched = [("--cache", path) for path in model.workload.exercise.caches]
    return (*watched, *((name, path) for name, path in (*named, *led) if path.is_absolute()))


def extensions(settings: Settings, model: Model) -> Path:
    """Return where PyTorch builds extensions for a model's programs (`torch.utils.cpp_extension`): the user's own."""
    known = {**os.environ, **given(settings, model)}
    home = known.get("XDG_CACHE_HOME") or Path(known.get("HOME") or Path.home()) / ".cache"
    return Path(known.get("TORCH_EXTENSIONS_DIR") or Path(home) / "torch_extensions")


def of_application(
    settings: Settings,
    model: Model | None,
    base: Mapping[str, str],
    holds: Callable[[Path], bool] = _holds_something,
) -> Mapping[str, str]:
    """Return what a program needs besides the stores of ours to find what was warmed, as far as clients take it over.

    That is what leads to the driver, what steers the compilers, and where those cache that are no kind of ours: for a
    command, of which nobody knows beforehand which it uses, where something was cached.
    """
    # Where a job gives each of its processes a device, the daemon's own is none for all.
    base = {name: text for name, text in base.items() if name not in CHOICES}
    if model is None:
        all_ = steering(settings, base)
    else:
        led = further(settings, model)
        if model.workload.exercise.loader is Loader.COMMAND:
            led = {name: text for name, text in led.items() if holds(Path(led.get(_OF.get(name, name), "/")))}
        all_ = {**steering(settings, base), **given(settings, model), **led}
    return {name: text for name, text in all_.items() if name in KNOWN and not name.startswith(OURS)}
