"""The recipes of a bundle in parts, by the workers of a cluster: Dask's scheduler has them done, and done again.

Nothing of a scheduler is here.  A part is an order as JSON, and so is what came of it; a worker that is killed leaves
whole entries, and who does its part again skips them.  All workers, and we, see the same files.
"""

from __future__ import annotations

import contextlib
import importlib
import time
from concurrent import futures
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol, cast

from msgspec import Struct
from msgspec.structs import replace

from xpucached import codec, messages
from xpucached.bundle import members
from xpucached.bundling import importing, part_journals
from xpucached.bundling.inspecting import checked_recipes
from xpucached.bundling.part_journals import PartJournal
from xpucached.bundling.rebuilding import is_held
from xpucached.bundling.signing import refuse_revoked
from xpucached.domain.bundles import BundleReplayReport, ReplayBundle
from xpucached.domain.imports import EntriesCame, together
from xpucached.errors import Conflict, MissingExtra, NoCluster, WrongHost, XpucachedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from xpucached.bundling.progress import Came, Progress

_PARTS: Final = 4
"""So many for each place where something can run: who is slow then does fewer of them."""
_MOST_PARTS: Final = 1000
_RETRIES: Final = 2
"""So often a part is done again that failed; one whose worker died, as often as the scheduler says (thrice)."""
_GATHER: Final = 60.0
"""Seconds for the first worker to come."""
_PATIENCE: Final = 30.0
"""Seconds until a file that another host made must be seen here; network file systems remember what was not there."""
_LOOK: Final = 0.5
_LARGEST: Final = 256 << 20


class PartRunner(Protocol):
    """What runs functions somewhere, as `concurrent.futures.Executor` does."""

    def submit(self, work: Callable[[bytes], bytes], order: bytes, /) -> futures.Future[bytes]:
        """Have a part done."""


class _Client(contextlib.AbstractContextManager["_Client"], Protocol):
    """What is used of a connection with a scheduler."""

    def wait_for_workers(self, n_workers: int, timeout: float) -> None: ...
    def nthreads(self) -> Mapping[str, int]: ...
    def get_executor(self, *, retries: int, pure: bool) -> contextlib.AbstractContextManager[PartRunner]: ...


class PartDone(Struct, frozen=True):
    """What came of a part."""

    report: BundleReplayReport
    places: tuple[Path, ...]  #: directories of entries, which must be seen by whoever asked
    came: tuple[EntriesCame, ...] = ()  #: what was put there, and of whom its recipes are
    journal: Path | None = None  #: where that stands, too


def part(order: bytes) -> bytes:
    """Do one part, in a process of a worker.  Raises what `importing.replay` does, and the scheduler tries it again."""
    told = messages.parse(order, largest=_LARGEST, escaped_bytes=True)
    came: list[EntriesCame] = []
    order_ = cast("ReplayBundle", codec.convert(told, ReplayBundle))
    with PartJournal(order_.into) as journal:
        report, places = importing.replayed(
            order_, lambda *_: None, lambda one: journal.note(one) if one.coming else came.append(one)
        )
    return codec.dumps(codec.to_json(PartDone(report, places, together(came), journal.path)))


def replay(order: ReplayBundle, progress: Progress, came: Came = lambda *_: None) -> BundleReplayReport:
    """Compile the recipes of a bundle on a cluster; see `ReplayBundle`.  Raises `NoCluster` and others."""
    bundle = members.opened(order.source)
    with bundle.layout:
        refuse_revoked(bundle)
        recipes = checked_recipes(bundle, progress)
    progress(0, 0, "asking the cluster for its workers")
    with _cluster(order.cluster) as (pool, places, workers):
        count = min(_MOST_PARTS, _PARTS * places, max(1, recipes.facts.entries))
        words = f"compiling in {count} parts on {workers} workers"
        return replace(in_parts(order, pool, count, recipes.facts.entries, progress, words, came), workers=workers)


def in_parts(
    order: ReplayBundle,
    pool: PartRunner,
    count: int,
    total: int,
    progress: Progress,
    words: str,
    came: Came = lambda *_: None,
) -> BundleReplayReport:
    """Have all parts done, and sum up what came of them.  Raises what a part raised at last."""
    single = replace(order, threads=1, cluster="")
    _tell_left(order.into, came)
    waiting = [pool.submit(part, _written(replace(single, shard=(index, count)))) for index in range(count)]
    summed: BundleReplayReport | None = None
    try:
        for one in futures.as_completed(waiting):
            done = _read(one.result())
            for some in done.came:
                came(some)
            if done.journal is not None:
                done.journal.unlink(missing_ok=True)
            for place in done.places:
                _seen(place)
            summed = done.report if summed is None else _sum(summed, done.report)
            progress(summed.rebuilt + summed.present + len(summed.failures), total * len(summed.targets), words)
    except XpucachedError:
        raise
    except Exception as error:
        raise NoCluster(f"a part failed again and again: {type(error).__name__}: {error}") from error
    finally:
        for one in waiting:
            one.cancel()
    # Of those whose worker died, and which their parts then found there.
    _tell_left(order.into, came, remove=True)
    if summed is None or not (summed.rebuilt or summed.present or summed.failures):
        raise WrongHost(
            "no recipe of the bundle is for a device of this driver", hint="see: xpucachectl bundle inspect"
        )
    return summed


def _tell_left(into: Path, came: Came, *, remove: bool = False) -> None:
    """Tell of whom that is which workers had put into a store when they were killed.

    To ``remove`` is where that stands, but for what workers of another replay write.
    """
    for journal, some, written in part_journals.left(into):
        for one in together(replace(one, coming=False) for one in some):
            came(one)
        if remove and not written:
            journal.unlink(missing_ok=True)


def _written(order: ReplayBundle) -> bytes:
    return codec.dumps(codec.to_json(order))


def _read(answer: bytes) -> PartDone:
    told = messages.parse(answer, largest=_LARGEST, most=10_000_000, escaped_bytes=True)
    return cast("PartDone", codec.convert(told, PartDone))


def _seen(place: Path) -> None:
    """Wait until an entry is here that a worker made.  Raises `NoCluster`."""
    until = time.monotonic() + _PATIENCE
    while not is_held(place):
        if time.monotonic() >= until:
            hint = "BUNDLE, DIR and the driver must lie on a file system that all workers and this host share"
            raise NoCluster(f"a worker made {place}, and it is not here", hint=hint)
        time.sleep(_LOOK)


def _sum(first: BundleReplayReport, other: BundleReplayReport) -> BundleReplayReport:
    if first.targets != other.targets:
        named = "; ".join(sorted({one.toolchain for each in (first, other) for one in each.targets}))
        raise Conflict(
            f"the workers have different drivers or devices: {named}",
            hint="name one that all of them can read: --driver-root DIR --device GPU",
        )
    return replace(
        first,
        rebuilt=first.rebuilt + other.rebuilt,
        present=first.present + other.present,
        failures=(*first.failures, *other.failures),
    )


@contextlib.contextmanager
def _cluster(address: str) -> Iterator[tuple[PartRunner, int, int]]:
    """Connect with a scheduler; give what runs functions there, in how many places, and how many workers these are."""
    try:
        distributed = importlib.import_module("distributed")  # an extra
    except ImportError:
        raise MissingExtra("Dask is not installed here", hint="in a clone: pip install '.[farm]'") from None
    try:
        client: _Client = distributed.Client(address, set_as_default=False)
    except TypeError as error:
        hint = "Dask's configuration says where certificates are: ~/.config/dask, or variables DASK_…"
        raise NoCluster(f"{address} cannot be asked over TLS: {error}", hint=hint) from error
    except (OSError, ValueError) as error:
        raise NoCluster(f"no scheduler answers at {address}: {error}") from error
    with client:
        try:
            client.wait_for_workers(1, timeout=_GATHER)
        except TimeoutError as error:
            raise NoCluster(f"the scheduler at {address} has no workers", hint=f"dask worker {address}") from error
        threads = client.nthreads()
        with client.get_executor(retries=_RETRIES, pure=False) as pool:
            yield pool, max(1, sum(threads.values())), len(threads)
