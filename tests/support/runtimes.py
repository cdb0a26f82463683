"""The real SYCL runtimes that tests start programs with."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tests import REPOSITORY
from tests.support import users
from xpucached.domain.stores import Store
from xpucached.kinds import sycl
from xpucached.kinds.sycl.preflight import SYCL_CHECK

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from xpucached.domain.names import EntryKey

PROGRAM: Final = """
import os
import dpctl.tensor as t
x = t.ones(64, dtype="f4")
for name in ("exp", "sqrt", "abs", "sum", "tanh"):
    getattr(t, name)(x)
y = t.astype(x, "i4") + 1
os._exit(0)
"""
"""A program with a handful of operators.  A simulated device executes nothing, so results are not looked at; and it
never ends well."""


ATTENTION: Final = REPOSITORY / "demo" / "attention.py"

ONE_THREAD: Final = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
"""For programs that calculate next to nothing: threads that ask again and again for work take more time than they."""

KERNELS: Final = Path(__file__).with_name("kernels.py")
"""A program that loads nothing but a SYCL runtime: a third of a second, where one with dpctl takes two."""


def told(root: Path, lines: Iterable[str]) -> tuple[frozenset[EntryKey], frozenset[EntryKey]]:
    """Return what a trace names: entries that were created, and others that were used."""
    recording = sycl.trace.read(Store(sycl.NAME, root), lines)
    return recording.created, recording.used


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

    def program(self, *kernels: str) -> list[str]:
        """Return the words that start a program of these kernels."""
        words = ["-I", "-S", "-B", str(KERNELS), str(SYCL_CHECK.parent), str(self._library)]
        return [sys.executable, *words, *kernels]

    def loader(self, *kernels: str) -> list[str]:
        """Return the words with which a model is added that a loader brings to life as that program."""
        given = {"directory": SYCL_CHECK.parent, "library": self._library, "names": " ".join(kernels)}
        options = [word for name, value in given.items() for word in ("--option", f"{name}={value}")]
        words = ["--loader", "python", "--python", sys.executable, "--device", "xpu", "--shape", "4"]
        return [*words, "--target", "kernels:use", "--directory", str(KERNELS.parent), *options]

    def builder(self, shape: str) -> list[str]:
        """Return the words that start a program which makes a program of that shape with this SYCL runtime."""
        words = ["-I", "-S", "-B", str(SYCL_CHECK), "--library", str(self._library), "--layout", "2", "--shape", shape]
        return [sys.executable, *words]

    @property
    def _library(self) -> Path:
        return self.lib / "libsycl.so.8"

    def environment(
        self, cache: Path, *, driver: Path | None = None, trace: bool = False, plain: bool = False
    ) -> dict[str, str]:
        """Return all the variables of a program that caches in ``cache``.

        ``driver`` is the library of another runtime (`Runtime.driver`), or a link to it; default is this one's own.
        With ``trace`` the runtime tells on stderr which entries it reads and writes.  With ``plain`` the driver does
        without vector instructions, and compiles in half the time: for where nobody compares what it compiled.
        """
        variables = {
            "HOME": os.environ["HOME"],
            "LD_LIBRARY_PATH": str(self.lib),
            "OCL_ICD_FILENAMES": str(driver or self.driver),
            "PATH": os.environ.get("PATH", os.defpath),
            "PYTHONDONTWRITEBYTECODE": "1",
            **ONE_THREAD,
            "SYCL_CACHE_DIR": str(cache),
            "SYCL_CACHE_PERSISTENT": "1",
        }
        if trace:
            variables["SYCL_CACHE_TRACE"] = "1"
        if plain:
            variables["CL_CONFIG_CPU_VECTORIZER_MODE"] = "1"
        return variables


def look_up(folder: Path, name: str) -> Runtime | None:
    """Find a runtime that ``tools/runtimes.py`` has finished."""
    root = folder / name
    return Runtime(name, root) if (root / "xpucached-runtime.json").is_file() else None


@dataclass(frozen=True, slots=True)
class SimulatedGpu:
    """Intel's GPU driver as ``tools/gpu_driver.py`` unpacks it, simulating its devices, and a runtime to use it."""

    root: Path
    runtime: Runtime
    before: tuple[Path, ...] = ()  #: where its libraries are looked for first
    device: str = "bmg-g21"
    shape: str = "1x5x8"

    def run(self, device: str, shape: str, cache: Path, driver_cache: Path) -> tuple[frozenset[str], frozenset[str]]:
        """Run a SYCL program; give the keys of the entries that it created, and of those that it used."""
        libraries = self.root / "usr/lib/x86_64-linux-gnu"
        driver_cache.mkdir(exist_ok=True)
        variables = {
            **self.runtime.environment(cache, trace=True),
            "NEOReadDebugKeys": "1",
            "UseAubStream": "0",
            "SetCommandStreamReceiver": "1",
            "ProductFamilyOverride": device,
            "HardwareInfoOverride": shape,
            "UseBindlessMode": "0",
            "UseExternalAllocatorForSshAndDsh": "0",
            "ZE_ENABLE_ALT_DRIVERS": str(libraries / "libze_intel_gpu.so.1"),
            "ONEAPI_DEVICE_SELECTOR": "level_zero:gpu",
            "UR_LOADER_USE_LEVEL_ZERO_V2": "0",  # the newer adapter makes no queue on a simulated device
            "NEO_CACHE_PERSISTENT": "1",
            "NEO_CACHE_DIR": str(driver_cache),
            "PYTHONPATH": str(next(self.runtime.lib.glob("python3*/site-packages"))),
        }
        del variables["OCL_ICD_FILENAMES"]
        places = (libraries, self.runtime.lib, "/usr/lib/x86_64-linux-gnu", "/lib/x86_64-linux-gnu")
        loader = (libraries / "ld-linux-x86-64.so.2", "--library-path", ":".join(map(str, places)))
        done = subprocess.run(
            [*loader, os.path.realpath(self.runtime.python), "-W", "ignore", "-c", PROGRAM],
            env=variables,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-2000:]
        created, used = told(cache, done.stderr.splitlines())
        return frozenset(map(str, created)), frozenset(map(str, used - created))

    def start(
        self, jobs: Sequence[tuple[str, Path, str]], store: Path, *, mere: bool = False, **variables: str
    ) -> subprocess.Popen[str]:
        """Start ``gpu_programs.py``, which builds these with the driver caching in ``store``.

        With ``mere`` it may not read what its user may not.
        """
        caching = {"NEO_CACHE_PERSISTENT": "1", "NEO_CACHE_DIR": str(store), "NEO_CACHE_STATS": "1"}
        program = self.builder(jobs)
        return subprocess.Popen(
            users.mere(program) if mere else program,
            env={"HOME": os.environ["HOME"], **self.variables, **caching, **variables},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
            cwd=store.parent,
        )

    @property
    def libraries(self) -> Path:
        """Where the driver and its compiler lie."""
        return self.root / "usr/lib/x86_64-linux-gnu"

    @property
    def variables(self) -> dict[str, str]:
        """Return what makes the driver simulate its device."""
        return {
            "NEOReadDebugKeys": "1",
            "UseAubStream": "0",
            "SetCommandStreamReceiver": "1",
            "ProductFamilyOverride": self.device,
            "HardwareInfoOverride": self.shape,
            "UseBindlessMode": "0",
            "UseExternalAllocatorForSshAndDsh": "0",
            "ZE_ENABLE_ALT_DRIVERS": str(self.libraries / "libze_intel_gpu.so.1"),
            "OCL_ICD_VENDORS": str(self.libraries / "intel-opencl/libigdrcl.so"),
            # For what uses SYCL: the newer adapter makes no queue on a simulated device.
            "ONEAPI_DEVICE_SELECTOR": "level_zero:gpu",
            "UR_LOADER_USE_LEVEL_ZERO_V2": "0",
        }

    def builder(self, jobs: Sequence[tuple[str, Path, str]]) -> list[str]:
        """Return the words that start ``gpu_programs.py``, which builds these."""
        words = [json.dumps([how, str(path), options]) for how, path, options in jobs]
        return self._program(Path(__file__).with_name("gpu_programs.py"), words)

    def attention(self, onednn: Runtime, first: int, last: int) -> list[str]:
        """Return the words that start the demo's attention with this oneDNN, for these numbers of keys."""
        words = [str(onednn.lib / "libdnnl.so.3"), str(first), str(last)]
        return self._program(ATTENTION, words, self.runtime.lib)

    def _program(self, file: Path, words: Iterable[str], *folders: Path) -> list[str]:
        """Return the words that start a program with the driver's C library, and libraries from these folders."""
        return [*self.command(*folders), os.path.realpath(sys.executable), "-I", "-S", str(file), *words]

    def command(self, *folders: Path) -> tuple[str, ...]:
        """Return what the command of a program begins with that loads this driver, and libraries from these folders."""
        ours = Path(os.path.realpath(sys.executable)).parent.parent / "lib"
        of_python = (ours, Path("/usr/lib/x86_64-linux-gnu"), Path("/lib/x86_64-linux-gnu"))
        path = ":".join(map(str, (*self.before, self.libraries, *folders, *of_python)))
        return (str(self.libraries / "ld-linux-x86-64.so.2"), "--library-path", path)
