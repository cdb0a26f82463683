"""Decide: with which variables a model's programs run, and which an application needs to find what was warmed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from xpucached.domain.workloads import Loader
from xpucached.kinds.variables import FURTHER, KNOWN, OURS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from xpucached.domain.models import Model
    from xpucached.settings import Settings


def given(settings: Settings, model: Model) -> Mapping[str, str]:
    """Return what the configuration gives all programs, and what was said with the model."""
    return {**settings.driver.variables, **model.workload.variables}


def further(settings: Settings, model: Model) -> Mapping[str, str]:
    """Return what leads compilers that are no kind of ours to the model's own directories; its own words come first.

    Only for a model that we bring to life: what a command does without them, its application does too.
    """
    if model.workload.exercise.loader is Loader.COMMAND:
        return {}
    place = settings.paths.cache / "models" / model.name
    own = {name: str(place / folder) for name, folder in FURTHER.items()}
    own["TORCHINDUCTOR_FX_GRAPH_CACHE"] = "1"
    return {name: text for name, text in own.items() if name not in given(settings, model)}


def of_application(settings: Settings, model: Model | None) -> Mapping[str, str]:
    """Return what a program needs besides the stores of ours to find what was warmed, as far as clients take it over.

    That is what leads to the driver, what steers the compilers, and where those cache that are no kind of ours.
    """
    all_ = settings.driver.variables if model is None else {**given(settings, model), **further(settings, model)}
    return {name: text for name, text in all_.items() if name in KNOWN and not name.startswith(OURS)}
