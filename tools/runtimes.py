"""Install real SYCL runtimes, and torch, for the CPU, each into a virtual environment of its own.

Usage: ``python3 tools/runtimes.py DIRECTORY NAME... | --all | --test | --demo``

They let tests and the demo meet real caches, real programs and a real driver upgrade without a GPU.  Each environment
is finished when it holds its marker, ``xpucached-runtime.json``; a finished one is left alone, a half-made one or one
with other pins is made again.  Standard library only, so that any Python can start it.
"""

from __future__ import annotations

import argparse
import filecmp
import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

MARKER: Final = "xpucached-runtime.json"

# Newer ones may work; this one did with all of these runtimes.
NUMPY: Final = "numpy==2.4.6"


@dataclass(frozen=True, slots=True)
class Recipe:
    """What goes into one environment, and the Python versions that all of it exists for."""

    pins: tuple[str, ...]
    pythons: tuple[tuple[int, int], ...]
    module: str | None  #: what programs import; None for a driver alone
    sycl: bool = True  #: whether it has a SYCL runtime or its driver, and not torch for the CPU
    library: str | None = None  #: all that is wanted, below ``lib``: what it needs is another environment's

    @property
    def marker(self) -> str:
        """What the marker says when this recipe was followed to its end."""
        return json.dumps({"pins": self.pins}, indent=1) + "\n"


def _intel(version: str) -> tuple[str, ...]:
    """Pin the four packages that fit together only at one version."""
    names = ("intel-sycl-rt", "intel-cmplr-lib-rt", "intel-cmplr-lib-ur", "intel-opencl-rt")
    return tuple(f"{name}=={version}" for name in names)


def _mkl(version: str) -> tuple[str, ...]:
    """Pin what dpnp needs; without these it stops at an undefined symbol."""
    return tuple(f"onemkl-sycl-{part}=={version}" for part in ("blas", "dft", "lapack", "rng", "vm"))


def _driver(version: str) -> Recipe:
    """Pin a driver alone."""
    pins = (f"intel-opencl-rt=={version}", f"intel-cmplr-lib-rt=={version}")
    return Recipe(pins, ((3, 11), (3, 12), (3, 13)), None)


def _onednn(version: str) -> Recipe:
    """Pin oneDNN with its half for GPUs: 0.1 GB, where all that it needs would be another SYCL runtime."""
    return Recipe((f"onednn=={version}",), ((3, 11), (3, 12), (3, 13)), None, library="libdnnl.so.3")


RECIPES: Final = {
    "rt2024.2": Recipe(
        ("dpctl==0.17.0", "dpcpp-cpp-rt==2024.2.2", *_intel("2024.2.2"), NUMPY),
        ((3, 11),),
        "dpctl.tensor",
    ),
    "rt2025.1": Recipe(("dpctl==0.19.0", *_intel("2025.1.1"), NUMPY), ((3, 11), (3, 12)), "dpctl.tensor"),
    "rt2025.2": Recipe(("dpctl==0.20.2", *_intel("2025.2.2"), NUMPY), ((3, 11), (3, 12), (3, 13)), "dpctl.tensor"),
    "rt2025.3": Recipe(("dpctl==0.21.1", *_intel("2025.3.3"), NUMPY), ((3, 11), (3, 12), (3, 13)), "dpctl.tensor"),
    "rt2026.2": Recipe(
        ("dpctl==0.22.1", "dpnp==0.20.0", "dpcpp-cpp-rt==2026.2.0", *_intel("2026.2.0"), *_mkl("2026.2.0"), NUMPY),
        ((3, 11), (3, 12), (3, 13)),
        "dpnp",
    ),
    "drv2025.0": _driver("2025.0.5"),
    "drv2025.3": _driver("2025.3.3"),
    "drv2026.0": _driver("2026.0.0"),
    # Named by what the library says of itself.  3.7 needs libsycl.so.8, as rt2025.2 has it; 3.13 that of rt2026.2.
    "onednn3.7": _onednn("2025.1.1"),
    "onednn3.13": _onednn("2026.1.0"),
    "openvino2026.4": Recipe(
        ("openvino==2026.4.1", NUMPY),
        ((3, 11), (3, 12), (3, 13)),
        None,
        library="python3*/site-packages/openvino/libs/libopenvino_intel_gpu_plugin.so",
    ),
    # From the usual index this torch brings CUDA along, some gigabytes; from one with builds for the CPU it does not.
    "torch": Recipe(
        ("torch==2.13.0", "transformers==5.23.0", "diffusers==0.42.1", NUMPY),
        ((3, 11), (3, 12), (3, 13)),
        "torch",
        sycl=False,
    ),
}

DEMO: Final = ("rt2025.2", "drv2025.3")
MEASURED: Final = ("onednn3.13", "openvino2026.4")
"""What no test starts; for ``bench``."""


class Failure(Exception):
    """Something that a person must put right; the text says what."""


@dataclass(frozen=True, slots=True)
class Interpreter:
    """A Python that can make virtual environments."""

    command: str
    version: tuple[int, int]


def interpreters() -> Iterator[Interpreter]:
    """Find the Pythons that we could use, the best first."""
    for command in ("python3.11", sys.executable, "python3.12", "python3.13"):
        path = shutil.which(command)
        if path is None:
            continue
        # A version manager's stand-in may exist and refuse; Debian's Python may lack ensurepip.  So it is tried.
        code = "import ensurepip, sys, venv; print(*sys.version_info[:2])"
        answer = subprocess.run([path, "-c", code], capture_output=True, text=True, check=False)
        if answer.returncode == 0:
            major, minor = answer.stdout.split()
            yield Interpreter(path, (int(major), int(minor)))


def choose(name: str, recipe: Recipe, there: list[Interpreter]) -> Interpreter:
    """Take the first Python that this runtime's packages exist for."""
    for one in there:
        if one.version in recipe.pythons:
            return one
    wanted = " or ".join(f"{major}.{minor}" for major, minor in recipe.pythons)
    found = ", ".join(f"{one.command} is {one.version[0]}.{one.version[1]}" for one in there) or "none"
    raise Failure(
        f"{name} exists for Python {wanted} only, with the venv module (on Debian: python3-venv).\n"
        f"Pythons with venv that were found: {found}."
    )


def is_finished(place: Path, recipe: Recipe) -> bool:
    """Return whether the environment was made with these pins, to the end."""
    try:
        made = json.loads((place / MARKER).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(made, dict) and made.get("pins") == list(recipe.pins) and (place / "bin" / "python").exists()


def install(place: Path, recipe: Recipe, interpreter: Interpreter) -> None:
    """Make the environment, prove that it works, and mark it as finished."""
    if place.exists():
        shutil.rmtree(place)
    _run([interpreter.command, "-m", "venv", str(place)])
    _run([
        str(place / "bin" / "python"),
        *("-m", "pip", "install", "--quiet", "--no-input", "--no-cache-dir", "--disable-pip-version-check"),
        *("--only-binary", ":all:", *(["--no-deps"] if recipe.library else []), *recipe.pins),
    ])  # fmt: skip
    prove(place, recipe)
    share_doubles(place / "lib")
    (place / MARKER).write_text(recipe.marker, encoding="utf-8")


def prove(place: Path, recipe: Recipe) -> None:
    """Start a program with the new runtime: it must find the driver and its device."""
    if not recipe.sycl:
        _run([str(place / "bin" / "python"), "-c", "import diffusers, torch, transformers; print(torch.ones(2).sum())"])
        return
    wanted = recipe.library or "libintelocl.so"
    if not any((place / "lib").glob(wanted)):
        raise Failure(f"there is no {place / 'lib' / wanted}")
    if recipe.module is not None:
        environment = {
            **os.environ,
            "LD_LIBRARY_PATH": str(place / "lib"),
            "OCL_ICD_FILENAMES": str(place / "lib" / wanted),
        }
        code = f"import dpctl, {recipe.module}; print(dpctl.SyclDevice('opencl:cpu').driver_version)"
        _run([str(place / "bin" / "python"), "-c", code], environment)


def share_doubles(folder: Path) -> None:
    """Make one file of equal neighbours.

    A wheel cannot hold links, so ``libx.so`` and ``libx.so.1`` come as two whole files: about a third of the space.
    """
    by_size: dict[int, list[Path]] = {}
    for path in sorted(folder.iterdir()):
        if path.is_file() and not path.is_symlink():
            by_size.setdefault(path.stat().st_size, []).append(path)
    for first, *others in by_size.values():
        for other in others:
            if filecmp.cmp(first, other, shallow=False):
                other.unlink()
                other.hardlink_to(first)


def _run(command: list[str], environment: dict[str, str] | None = None) -> None:
    done = subprocess.run(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    if done.returncode:
        hint = "\non Debian: apt-get install libpython3.11" if "libpython3" in done.stdout else ""
        raise Failure(f"{' '.join(command)}\nended with status {done.returncode}:\n{done.stdout.strip()}{hint}")


def main() -> int:
    """Install what was asked for; 0 when all of it is there."""
    parser = argparse.ArgumentParser(description="Install real SYCL runtimes for the CPU (1 to 2 GB each).")
    parser.add_argument("directory", type=Path, metavar="DIRECTORY")
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(RECIPES))
    parser.add_argument("--all", action="store_true", help="every runtime")
    parser.add_argument("--test", action="store_true", help=f"what the tests need: all but {', '.join(MEASURED)}")
    parser.add_argument("--demo", action="store_true", help=f"what the demo needs: {' and '.join(DEMO)}")
    asked = parser.parse_args()
    tested = [name for name in RECIPES if name not in MEASURED]
    names = list(RECIPES) if asked.all else tested if asked.test else [*asked.names, *(DEMO if asked.demo else ())]
    unknown = [name for name in names if name not in RECIPES]
    if unknown or not names:
        parser.error(
            f"no such runtime: {', '.join(unknown)}" if unknown else "name a runtime, or --all, --test, --demo"
        )

    missing = [name for name in names if not is_finished(asked.directory / name, RECIPES[name])]
    there = list(interpreters()) if missing else []
    asked.directory.mkdir(parents=True, exist_ok=True)
    for count, name in enumerate(missing, start=1):
        print(f"[{count}/{len(missing)}] {name}: installing …", flush=True)
        began = time.monotonic()
        try:
            install(asked.directory / name, RECIPES[name], choose(name, RECIPES[name], there))
        except (Failure, OSError) as problem:
            print(f"[{count}/{len(missing)}] {name}: failed: {problem}", file=sys.stderr)
            return 1
        print(f"[{count}/{len(missing)}] {name}: done in {time.monotonic() - began:.0f} s", flush=True)
    print(f"runtimes are in {asked.directory}: {' '.join(names)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
