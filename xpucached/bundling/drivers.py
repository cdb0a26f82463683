"""With which driver a bundle is made or taken in: the installed one, one in a folder, or one that pretends a GPU."""

from __future__ import annotations

import contextlib
import os
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

from msgspec import Struct
from msgspec.structs import replace

from xpucached import deadlines, mounts
from xpucached.bundling.library_digests import LibraryDigests
from xpucached.domain.host import Host, OtherDriver
from xpucached.host import compiler_files, drivers, gpu_devices, other_driver, survey
from xpucached.kinds import table
from xpucached.processes import child, driver_probe, scratch
from xpucached.settings import loading

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from xpucached.domain.bundles import CompilerLibrary
    from xpucached.domain.targets import Target
    from xpucached.settings import Settings


WORKERS: Final = Path("/var/lib/xpucached-worker")
"""Where workers of the host's service keep what they know, each in a directory that is its user's alone."""

CATALOG: Final = "catalog.sqlite"


class UsedDriver(Struct, frozen=True):
    """A driver, and what stands for it on any host."""

    driver: OtherDriver
    host: Host
    switches: Mapping[str, str]  #: variables that are set and change the code that it makes
    memory: Path | None = None  #: a folder where digests of libraries are remembered

    @contextlib.contextmanager
    def compiler_meanwhile(self) -> Iterator[Callable[[], tuple[CompilerLibrary, ...]]]:
        """Read the libraries while something else is done; give what waits for it, and says what `compiler` does."""
        with ThreadPoolExecutor(1) as pool:
            yield pool.submit(lambda: self.compiler).result

    @property
    def compiler(self) -> tuple[CompilerLibrary, ...]:
        """Return the libraries that decide about the code; reads them, which takes seconds."""
        return compiler_files.compiler_files(self.driver.driver, LibraryDigests(self.memory))

    def isa(self, target: Target) -> str:
        """Return for which instructions programs are compiled; empty if that is not known.

        Of a GPU Level Zero alone tells them: OpenCL gives its own version in the same place.
        """
        named = [one for one in self.host.devices if any(told.device == target.device for told in one.answers)]
        answers = [told for one in named for told in one.answers]
        if answers and not any(map(gpu_devices.is_gpu, answers)):
            return compiler_files.cpu_isa()
        versions = {told.version for told in answers if gpu_devices.is_level_zero(told)}
        return f"gpu:{versions.pop()}" if len(versions) == 1 else ""


def settings(*, user: bool = True) -> Settings:
    """Read the settings of this user, or of the host.

    Without a place for a socket, as in the build of an image, it is the usual one.  Of the catalogs that this user's
    own daemon and a worker of the host's service keep for him, the one that was written last counts.
    """
    environ = {name: text for name, text in os.environ.items() if name.startswith(("XPUCACHED_", "XDG_", "HOME"))}
    environ.setdefault("XDG_RUNTIME_DIR", "/run/user/none")
    # Where root keeps its HOME, a home is another's.
    return deadlines.ask(environ.get("HOME", ""), lambda: _settings(user, environ), deadlines.OF_HOMES)


def _settings(user: bool, environ: Mapping[str, str]) -> Settings:  # noqa: FBT001 - as above
    found = loading.load(None, user=user, environ=environ)
    worker = WORKERS / str(os.geteuid())
    if user and _written(worker) > _written(found.paths.state):
        return replace(found, paths=replace(found.paths, state=worker))
    return found


def _written(state: Path) -> float:
    """Return when the catalog in a directory was written last; 0 if there is none."""
    times = [0.0]
    for name in (CATALOG, f"{CATALOG}-wal"):
        with contextlib.suppress(OSError):
            times.append((state / name).stat().st_mtime)
    return max(times)


@contextlib.contextmanager
def used(root: Path | None = None, device: str | None = None, timeout: float = 60.0) -> Iterator[UsedDriver]:
    """Ask a driver who it is: the installed one, where nothing else is named.  Raises `HostError` and others."""
    own = settings()
    led = own.driver.variables
    with scratch.directory() as place:
        if root is None and device is None:
            everything = child.environment(led)
            files = drivers.driver_files(everything)
            report = driver_probe.ask(led, timeout)
            host = table.with_targets(survey.survey(report, led, datetime.now(UTC), files=files))
            driver = OtherDriver(host.environments, host.stamp, led, devices=host.devices, driver=files)
        else:
            asked = other_driver.unpacked(root, device, led, timeout, Path(mounts.real(place)))
            now = datetime.now(UTC)
            host = table.with_targets(Host(now, "", gpu_devices.kernel(), asked.stamp, asked.devices, asked.driver))
            driver = replace(asked, environments=host.environments)
        yield UsedDriver(driver, host, _switches({**os.environ, **led}), own.paths.state)


def _switches(environ: Mapping[str, str]) -> Mapping[str, str]:
    """Return what changes code without changing under which name it is kept."""
    return {name: text for name, text in sorted(environ.items()) if name.startswith(("CL_CONFIG_", "IGC_"))}
