"""Which values of a room may be changed after they were made."""

from __future__ import annotations

import importlib
import pkgutil
from dataclasses import is_dataclass
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType


def changeable(room: ModuleType) -> set[str]:
    """Return the names of a room's values that may be changed, or that take any further fact."""
    return {one.__name__ for one in _values(room) if not _is_frozen(one) or one.__dictoffset__}


def _values(room: ModuleType) -> Iterator[type]:
    for found in pkgutil.iter_modules(room.__path__):
        if found.name == "__main__":
            continue
        module = importlib.import_module(f"{room.__name__}.{found.name}")
        for one in vars(module).values():
            mine = isinstance(one, type) and one.__module__ == module.__name__
            if mine and (is_dataclass(one) or issubclass(one, msgspec.Struct)):
                yield one


def _is_frozen(one: type) -> bool:
    if issubclass(one, msgspec.Struct):
        return one.__struct_config__.frozen
    return bool(one.__dataclass_params__.frozen)  # type: ignore[attr-defined] # of dataclasses
