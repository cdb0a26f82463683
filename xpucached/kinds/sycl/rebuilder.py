"""Compiling again what lies in a store: from what, whether programs will look for it, and where it goes."""

from __future__ import annotations

import json
from pathlib import Path

from xpucached.domain.host import Host
from xpucached.domain.names import EntryKey
from xpucached.domain.plans import CompilerSpec, Recipe
from xpucached.domain.targets import Target
from xpucached.kinds.sycl import preflight, recipes
from xpucached.kinds.sycl.targets import answer_of

recipe = recipes.recipe
unusable = recipes.unusable
publish = recipes.publish
expected_key = recipes.expected_key
confirm = preflight.confirm


def compiler(target: Target, place: Path) -> CompilerSpec:  # noqa: ARG001 - it answers with what it makes
    """Return what compiles for a target; see `Rebuilder.compiler`."""
    answer = answer_of(target)
    backend = "level-zero" if "level-zero" in answer.platform.lower() else "opencl"
    wanted = json.dumps([answer.platform, answer.device, answer.version, answer.driver])
    return CompilerSpec(("--backend", backend, "--environment", wanted))


def made(
    recipe: Recipe,
    environment: Target,  # noqa: ARG001 - it answers with what it makes
    host: Host,  # noqa: ARG001
    binary: bytes,
    place: Path,  # noqa: ARG001
) -> tuple[Recipe, bytes] | str:
    """Return both as they are; see `Rebuilder.made`."""
    return recipe, binary


def lineage_key(key: EntryKey) -> str | None:
    """Return the leaf below the device's directory; what the runtime compiled from source belongs to no driver."""
    device, _, rest = key.partition("/")
    leaf, _, _ = rest.rpartition("/")
    return leaf if device.isdigit() and leaf else None
