"""What the daemon does without being asked: each part for itself, and what fails is a problem until it works again."""

from __future__ import annotations

import asyncio
import logging
import re
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from xpucached.domain.host import AUTOMATIC, Problem
from xpucached.domain.jobs import ErrorInfo, JobState
from xpucached.errors import CatalogError, RunFailed, XpucachedError
from xpucached.incidents import unexpected

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from xpucached.domain.jobs import Job
    from xpucached.service.context import Context

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Part:
    """Something that the daemon does by itself."""

    name: str
    title: str  #: completes "the daemon's own …"
    affected: str  #: what is so while it fails
    hint: str = "it is tried again at the next look; xpucachectl scan looks now"


SURVEY: Final = Part("survey", "look at the devices and drivers", "a change of the driver may go unnoticed")
MODELS: Final = Part("models", "reading of the model files", "changes of model files are not taken in")
RUNTIMES: Final = Part("runtimes", "check of the models' SYCL runtimes", "it is not known whether they are safe")
SCAN: Final = Part("scan", "look at the stores", "what is shown of the stores may be old")
FORETELL: Final = Part(
    "predict", "reckoning of what programs look for under another compiler", "models that are warm may be called cold"
)
CATALOG: Final = Part("catalog", "check of the catalog", "damage in the catalog may go unnoticed")
REVOKE: Final = Part(
    "revoke",
    "removal of what is revoked",
    "programs may run what came with a revoked bundle",
    "xpucachectl evict --reason revoked tries it now",
)
MEND: Final = Part(
    "mend",
    "mending of damaged entries",
    "what is damaged is evicted, and not mended",
    "xpucachectl verify --fix tries it now",
)
REPLAY: Final = Part(
    "replay",
    "replay",
    "entries of an older driver are not rebuilt, so models compile them again",
    "xpucachectl replay tries it now",
)
TAKE: Final = Part(
    "bundles",
    "taking in of bundles",
    "what others compiled is compiled here",
    "see: xpucachectl bundle inspect",
)
AHEAD: Final = Part(
    "ahead",
    "preparation for a driver that is not installed yet",
    "entries are compiled when it is installed, and not before",
    "it is tried again at the next look",
)
PREWARM: Final = Part("prewarm", "prewarm", "models may stay cold", "xpucachectl prewarm --stale tries it now")
EVICT: Final = Part("evict", "eviction", "nothing is evicted by itself", "xpucachectl evict tries it now")
TIDY: Final = Part("tidy", "clearing of the trash", "what is in the trash stays there", "see: xpucachectl trash list")
SCRUB: Final = Part("scrub", "slow check of all entries", "damage may go unnoticed", "xpucachectl verify reads all now")
CALM: Final = Part("calm", "wait for a calm host", "models may stay cold", "xpucachectl prewarm --stale goes at once")
ACTIVITY: Final = Part("activity", "account of what programs do in the stores", "last uses are not noted")
WATCH: Final = Part("watch", "watch of drivers, stores and model files", "changes are noticed late, at the next look")


PAUSES: Final = (2.0, 8.0)
"""Seconds after which what failed is tried again before that goes on which needs it: a package may be half unpacked."""

LOOKS: Final = frozenset(one.name for one in (CATALOG, SURVEY, MODELS, RUNTIMES, SCAN))
"""The parts of a look."""


class Cancelled(Exception):
    """The job that did a part was cancelled."""


def check(job: Job) -> None:
    """Raise what ended a job.  A model that could not be warmed is shown as such, and no failure of the job."""
    if job.state is JobState.CANCELLED:
        raise Cancelled
    if job.error is not None and job.error.code != RunFailed.code:
        kind = CatalogError if job.error.code == CatalogError.code else XpucachedError
        raise kind(job.error.message, hint=job.error.hint)


class AutomaticWork:
    """Runs parts, and keeps their failures apart from each other and in the status."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._failing: dict[str, str] = {}
        """The parts that fail now, and what was last said of each."""
        self._in_vain: dict[str, object] = {}
        """The parts on which it was insisted to no avail, and what there was then."""

    @asynccontextmanager
    async def part(self, part: Part) -> AsyncIterator[None]:
        """Do a part; what goes wrong in it is noted and shown, and goes no further."""
        try:
            yield
        except Cancelled:
            pass  # neither failed nor well again
        except XpucachedError as error:
            like = repr(error.__cause__) if error.__cause__ is not None else ""
            self.failed(part, ErrorInfo(error.code, error.message, error.hint), like=like)
        except Exception as error:  # noqa: BLE001 - a mistake in one part must not stop the others
            told = unexpected(log, f"in the daemon's own {part.title}", error)
            self.failed(part, ErrorInfo(told.code, told.message, told.hint), like=repr(error))
        else:
            self.worked(part)

    async def insist(self, part: Part, do: Callable[[], Awaitable[None]], given: Callable[[], object]) -> None:
        """Do a part, and if it fails again after each of `PAUSES`; but once only while ``given`` is what it was then.

        What waits for it goes on after that: something may be wrong for good, and `status` shows what.
        """
        for pause in (*PAUSES, None):
            failed, before = False, given()
            async with self.part(part):
                try:
                    await do()
                except (Cancelled, CatalogError):
                    raise  # what follows cannot be recorded either
                except Exception:
                    failed = True
                    raise
            if not failed or self._in_vain.get(part.name) == before:
                return
            if pause is None:
                self._in_vain[part.name] = before
            else:
                await asyncio.sleep(pause)

    def failed(self, part: Part, error: ErrorInfo, *, like: str = "") -> None:
        """Show that a part failed; ``like`` is the same for failures that need not be told of twice."""
        # Each unexpected failure has a reference of its own.
        said = like or re.sub(r"reference [0-9a-f]+", "", error.message)
        news = self._failing.get(part.name) != said
        self._failing[part.name] = said
        message = f"the daemon's own {part.title} failed: {error.message}; {part.affected}"
        hint = f"{error.hint}; {part.hint}" if error.hint else part.hint
        # What the catalog cannot record is shown once and not for each part.
        if error.code != CatalogError.code or self._context.catalog.trouble is None:
            self._context.problems.note(Problem("automatic-job-failed", message, hint, part.name))
        # What it quotes is our user's; the journal has other readers.
        level = logging.WARNING if news else logging.DEBUG
        log.log(level, "the daemon's own %s failed (%s); %s; status says why", part.title, error.code, part.affected)
        log.debug("%s", message)
        if news:
            self._context.events.post(AUTOMATIC, message, {"part": part.name, "hint": hint})

    def worked(self, part: Part) -> None:
        """Show that a part works again."""
        if self._failing.pop(part.name, None) is not None:
            self._context.problems.clear(AUTOMATIC, part.name)
            self._context.events.post("automatic-job-recovered", f"{part.title}: works again", {"part": part.name})

    def forget(self, part: Part) -> None:
        """Show no failure of a part that is not done any more."""
        if self._failing.pop(part.name, None) is not None:
            self._context.problems.clear(AUTOMATIC, part.name)

    @property
    def failing(self) -> frozenset[str]:
        """The names of the parts that failed when they were last tried."""
        return frozenset(self._failing)
