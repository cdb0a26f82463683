"""Load modules of others without what they bring along and we never use: it would stay in memory for good."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import sys
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


class DeferredModule(ModuleType):
    """A module of which a few names are known, and which is loaded only if it is asked for another one."""

    def __init__(self, name: str, **known: object) -> None:
        super().__init__(name)
        vars(self).update(known)

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        return getattr(importlib.import_module(self.__name__), name)


@contextlib.contextmanager
def instead(modules: Mapping[str, ModuleType | None]) -> Iterator[None]:
    """While something is loaded, have these found in place of modules; None is for a module that is not there.

    What is loaded already stays as it is, and who imports one of them later gets it as it is.
    """
    put = {name: one for name, one in modules.items() if name not in sys.modules}
    sys.modules.update(put)  # type: ignore[arg-type] # with None "The import system" of Python's reference finds none
    try:
        yield
    finally:
        for name, one in put.items():
            # What is deferred may have been loaded meanwhile.
            if sys.modules.get(name) is one:
                sys.modules.pop(name, None)


def package(name: str) -> DeferredModule:
    """Return a package in which its modules are found, and which loads none of them by itself."""
    spec = importlib.util.find_spec(name)
    if spec is None:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)
    return DeferredModule(name, __spec__=spec, __path__=spec.submodule_search_locations)


def all_there(*names: str) -> bool:
    """Return whether all these modules of Python's own can be found."""
    return all(importlib.util.find_spec(name) for name in names)
