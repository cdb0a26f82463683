"""The real SYCL runtimes that tests start programs with."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True, slots=True)
class Runtime:
    """One virtual environment with a SYCL runtime and Intel's OpenCL driver for the CPU, or with that driver alone."""

    name: str
    root: Path

    @property
    def python(self) -> Path:
        """The interpreter that finds ``dpctl`` (or ``dpnp``)."""
        return self.root / "bin" / "python"

    @property
    def lib(self) -> Path:
        """Where the shared libraries lie."""
        return self.root / "lib"

    @property
    def driver(self) -> Path:
        """The OpenCL driver, for ``OCL_ICD_FILENAMES``."""
        return self.lib / "libintelocl.so"

    def environment(self, cache: Path, *, driver: Path | None = None, trace: bool = False) -> dict[str, str]:
        """Give all the variables of a program that caches in ``cache``.

        ``driver`` is the library of another runtime (`Runtime.driver`), or a link to it; default is this one's own.
        With ``trace`` the runtime tells on stderr which entries it reads and writes.
        """
        variables = {
            "HOME": os.environ["HOME"],
            "LD_LIBRARY_PATH": str(self.lib),
            "OCL_ICD_FILENAMES": str(driver or self.driver),
            "PATH": os.environ.get("PATH", os.defpath),
            "PYTHONDONTWRITEBYTECODE": "1",
            "SYCL_CACHE_DIR": str(cache),
            "SYCL_CACHE_PERSISTENT": "1",
        }
        if trace:
            variables["SYCL_CACHE_TRACE"] = "1"
        return variables


def look_up(folder: Path, name: str) -> Runtime | None:
    """Find a runtime that ``tools/runtimes.py`` has finished."""
    root = folder / name
    return Runtime(name, root) if (root / "xpucached-runtime.json").is_file() else None
