"""What all flows share: settings, catalog, clock, what is told and shown, the host as last seen, and the locks."""

from __future__ import annotations

import asyncio
import logging
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Literal, ParamSpec, TypeVar

from xpucached.catalog.recipes import RecipeStore
from xpucached.catalog.surveys import last_survey
from xpucached.domain.host import Host
from xpucached.domain.plans import NoRecipe
from xpucached.host.core_slots import CoreBudget, RunSlot
from xpucached.kinds import table
from xpucached.planning.ranking import RATE
from xpucached.service import program_variables
from xpucached.service.automatic import AutomaticWork
from xpucached.service.events import Events
from xpucached.service.jobs import Jobs
from xpucached.service.owners import answers
from xpucached.service.problems import ClockGuard, ProblemList, clock_jumped
from xpucached.service.turns import ModelTurns

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

    from xpucached.catalog import Catalog, Question
    from xpucached.domain.host import Problem
    from xpucached.domain.names import ModelName
    from xpucached.domain.plans import Recipe
    from xpucached.domain.stores import Entry
    from xpucached.domain.throttling import Waiting
    from xpucached.service.events import Clock
    from xpucached.service.jobs import Handle
    from xpucached.settings import Settings

log = logging.getLogger(__name__)

_P = ParamSpec("_P")
_T = TypeVar("_T")


def _now() -> datetime:
    return datetime.now(UTC)


async def _nothing() -> None:
    """Do nothing."""


class TurnLock(asyncio.Lock):
    """A lock that says so when somebody has to wait for it: what is less urgent may give way."""

    def __init__(self) -> None:
        super().__init__()
        self.on_wait: Callable[[], None] = lambda: None
        self.patient: asyncio.Task[object] | None = None
        """Who lets everybody go first: that it waits is no reason to hurry."""
        self.waiting = 0
        """How many others wait."""

    async def acquire(self) -> Literal[True]:
        """Take it, as soon as it is free."""
        if self.locked():
            self.on_wait()
        others = int(asyncio.current_task() is not self.patient)
        self.waiting += others
        try:
            return await super().acquire()
        finally:
            self.waiting -= others


class Locks:
    """Order the work.  Who needs several takes them in this order."""

    def __init__(self) -> None:
        self.looking = asyncio.Lock()
        """Held while the daemon looks at what may have changed."""
        self.changing = TurnLock()
        """Held while one model runs, or entries are rebuilt, mended, evicted, restored or let go for good."""
        self.storing = asyncio.Lock()
        """Held while a store is scanned or entries are removed: the two never overlap."""


class Context:
    """Holds it.  Used from one event loop, but for the catalog and the problems, which any thread may use."""

    def __init__(self, settings: Settings, catalog: Catalog, base: Mapping[str, str], clock: Clock = _now) -> None:
        """``base`` is the environment of this process, which is below all variables that are given to children."""
        self.settings = settings
        self.settings_problems: tuple[Problem, ...] = ()
        """What is wrong with settings that were refused."""
        self.settings_unread = False
        """Whether there was no file of them when they were read, and there is one now, or its home is away."""
        self.away: Mapping[ModelName, Waiting] = {}
        """Models whose files are away, as in a home that is not mounted yet: no run of theirs begins by itself."""
        self.catalog = catalog
        self.base = base
        self.clock = clock
        self.events = Events(clock, catalog)
        self.problems = ProblemList()
        self.jobs = Jobs(clock)
        self.turns = ModelTurns()
        self.cores = CoreBudget()
        self.run_slot = RunSlot()
        self.automatic = AutomaticWork(self)
        self.host: Host | None = catalog.read(last_survey)
        """What the last survey found; None before the first one ever."""
        self.locks = Locks()
        self.recipes = RecipeStore(catalog, settings.paths.state / "recipes")
        self.ready = False
        """Whether everything was looked at once."""
        self.looked: datetime | None = None
        """When the last whole look began in which nothing failed."""
        self.notices = 0
        """How often somebody said that the driver may have changed …"""
        self.noticed = 0
        """… and how often when the drivers last answered."""
        self.compile_rate = RATE
        """Seconds that a byte is estimated to take to compile, as far as was reckoned last."""
        self.on_look: Callable[[], None] = lambda: None
        """What the daemon does when somebody says that something may have changed."""
        self.on_models: Callable[[], None] = lambda: None
        """What the daemon does when a model was registered: it is warmed as if it were a new file."""
        self.look_later: Callable[[float], None] = lambda _seconds: None
        """What the daemon does when something is to be tried again after so many seconds."""
        self.on_scan: Callable[[], Awaitable[None]] = _nothing
        """What the daemon does when stores were looked at because somebody asked."""
        self.on_settled: Callable[[], None] = lambda: None
        """What the daemon does when a look is over."""
        self.is_busy: Callable[[], bool] = lambda: False
        """Tell whether something goes on, or has yet to begin."""
        self._clock_guard = ClockGuard(clock)

    @property
    def steering(self) -> Mapping[str, str]:
        """What decides what all programs compile."""
        return program_variables.steering(self.settings, self.base)

    @property
    def present(self) -> Host:
        """The host as the last survey found it; an empty one before the first."""
        return self.host or Host(self.clock(), "", "", "")

    def recipe(self, entry: Entry) -> Recipe | NoRecipe:
        """Read what an entry was compiled from, or say why it cannot be compiled again; see `Rebuilder.recipe`."""
        if not answers(entry.id.store.root):
            return NoRecipe.UNREADABLE
        return table.recipe(entry, self.recipes.recorded(entry.id.store.kind, entry.id.key))

    async def read(self, ask: Question[_P, _T], /, *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """Ask the catalog, in a thread."""
        return await asyncio.to_thread(self.catalog.read, ask, *args, **kwargs)

    async def write(self, do: Question[_P, _T], /, *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """Note something in the catalog, in a thread."""
        return await asyncio.to_thread(self.catalog.write, do, *args, **kwargs)

    async def write_durably(self, do: Question[_P, _T], /, *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """Do the same for what a failure of the power, or a host that stands still, must not take back."""
        return await asyncio.to_thread(self.catalog.write_durably, do, *args, **kwargs)

    async def until_ready(self) -> None:
        """Wait until everything was looked at once."""
        while not self.ready:  # noqa: ASYNC110 - one waits, once in a life
            await asyncio.sleep(1.0)

    @asynccontextmanager
    async def turn(self, handle: Handle) -> AsyncIterator[None]:
        """Let a job wait until nothing else changes entries, and keep it so."""
        handle.progress(0, 0, "waiting for its turn")
        async with self.locks.changing:
            yield

    def mind_the_clock(self) -> int:
        """Notice that the clock was set, and trust no ages for a while; give how often that has happened."""
        jump = self._clock_guard.jumped()
        if jump is not None:
            problem = clock_jumped(jump)
            log.warning("%s", problem.message)
            self.events.post("clock-jumped", problem.message, {"seconds": f"{jump:.0f}"})
            self.problems.note(problem)
        elif not self._clock_guard.distrusted:
            self.problems.clear("clock-jumped")
        return self._clock_guard.jumps

    def trusts_the_clock(self) -> bool:
        """Return whether ages may be believed: the clock was not set a short while ago."""
        self.mind_the_clock()
        return not self._clock_guard.distrusted
