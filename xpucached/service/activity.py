"""What programs were seen to do in the stores: last uses for the catalog, and an alarm when one compiles."""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections import OrderedDict, deque
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from xpucached import deadlines
from xpucached.catalog import days
from xpucached.catalog.models import all_models
from xpucached.domain.activity import Compiling, FileAct
from xpucached.domain.host import Problem
from xpucached.errors import CatalogError
from xpucached.host import process_table, process_times
from xpucached.kinds.table import KINDS, libraries
from xpucached.planning import activity

if TYPE_CHECKING:
    from datetime import datetime
    from pathlib import Path

    from xpucached.domain.activity import FileEvent, Load, Program
    from xpucached.domain.models import Model
    from xpucached.domain.names import EntryKey, KindName
    from xpucached.planning.activity import Half
    from xpucached.service.context import Context
    from xpucached.service.scan import StoreScanner

log = logging.getLogger(__name__)

_WAITING: Final = 200_000
"""Touches that wait to be looked at; of more than that, some uses go unseen."""
_FLUSH: Final = 60.0
"""Seconds between two writes of uses into the catalog."""
_SHOWN: Final = timedelta(hours=1)
"""How long it is shown that a program compiled, after its last entry."""
_MOST: Final = 100
"""Programs that are remembered."""


class ActivityTracker:
    """Takes touches from the watcher's thread, and says what they mean."""

    def __init__(self, context: Context, scanner: StoreScanner) -> None:
        self._context = context
        self._scanner = scanner
        self._waiting: deque[tuple[FileEvent, Program]] = deque(maxlen=_WAITING)
        self._programs: OrderedDict[int, tuple[float, Program | None]] = OrderedDict()
        self._last: tuple[int, float] | None = None
        self._halves: dict[KindName, frozenset[Half]] = {}
        self._uses: dict[tuple[Path, EntryKey], Load] = {}
        self._flushed = time.monotonic()
        self._compiling: dict[Program, Compiling] = {}
        self.compiled = 0  #: entries that programs were seen to make

    @property
    def compiling(self) -> tuple[Compiling, ...]:
        """Return the programs that compiled lately, the newest first."""
        return tuple(sorted(self._compiling.values(), key=lambda one: one.last, reverse=True))

    # -- in the watcher's thread --------------------------------------------------------------------------------------

    def take(self, file_event: FileEvent) -> bool:
        """Note a touch, if it can mean something.  Who it was is asked now, for soon that may not be known any more.

        Tell whether it is the writing of a file that is no entry alone.
        """
        self._scanner.take_touch(file_event)
        self._note(file_event)
        readers = [kind.activity for kind in KINDS.values() if kind.activity is not None]
        return file_event.act is FileAct.WRITTEN and any(one.is_half(file_event.path) for one in readers)

    def _note(self, file_event: FileEvent) -> None:
        if file_event.act not in {FileAct.READ, FileAct.WRITTEN} or file_event.pid in {0, os.getpid()}:
            return
        program = self._program(file_event.pid, file_event.at)
        if program is not None and program.libraries and not program.ours:
            self._waiting.append((file_event, program))

    def _program(self, pid: int, at: float) -> Program | None:
        known = self._programs.get(pid)
        if known is not None and self._last == (pid, at):
            return known[1]
        began = process_times.started(pid)
        if known is None or (began is not None and known[0] < began <= at):
            # Unknown, or another process has got that number since.
            if began is None or began > at:
                return None
            try:
                whose = process_times.uid(pid)
                # Whoever may mount what he likes can have the kernel wait where a process of his is looked at: that
                # keeps nobody from looking at those of others.
                place = ("/proc", str(whose), str(pid) if whose == os.geteuid() else "")
                program = deadlines.ask(place, lambda: process_table.program(pid, at, libraries()))
            except (TimeoutError, ProcessLookupError, FileNotFoundError, IndexError):
                return None
            known = (began, program)
            self._programs[pid] = known
            while len(self._programs) > _MOST:
                self._programs.popitem(last=False)
        self._last = (pid, at)
        return known[1]

    # -- in the loop --------------------------------------------------------------------------------------------------

    async def digest(self, *, last: bool = False) -> None:
        """Say what the touches mean that came since; with ``last``, write down everything now."""
        came: list[tuple[FileEvent, Program]] = []
        while self._waiting:
            came.append(self._waiting.popleft())
        if came:
            now = self._context.clock()
            boot = now - timedelta(seconds=time.clock_gettime(time.CLOCK_BOOTTIME))
            kinds = {store: self._scanner.finder.kinds_at(store) for store in {one.store for one, _ in came}}
            for name, reader in [(name, kind.activity) for name, kind in KINDS.items()]:
                if reader is None:
                    continue
                here = [one for one in came if name in kinds[one[0].store]]
                seen = reader.interpret(here, boot, self._halves.get(name, frozenset()))
                self._halves[name] = seen.halves
                self._uses = activity.uses(self._uses, seen.loaded)
                for program, entries in seen.made.items():
                    await self._note_compiling(program, entries)
        self._forget()
        if self._uses and (last or time.monotonic() - self._flushed >= _FLUSH):
            await self._flush()

    async def _flush(self) -> None:
        self._flushed = time.monotonic()
        uses, self._uses = self._uses, {}
        try:
            context, loads = self._context, tuple(uses.values())
            await context.write(days.note_loads, loads, context.compile_rate, context.clock())
        except CatalogError as error:
            # Only a hint of how worthwhile an entry is; what fails is shown by others.
            log.warning("uses could not be written down: %d: %s", len(uses), error.message)

    async def _note_compiling(self, program: Program, entries: tuple[tuple[Path, EntryKey, datetime], ...]) -> None:
        self.compiled += len(entries)
        with contextlib.suppress(CatalogError):  # what fails is shown by others
            await self._context.write(days.add, self._context.clock(), compiled=len(entries))
        old = self._compiling.get(program)
        stores = {store for store, _, _ in entries} | set(old.stores if old else ())
        now = self._compiling[program] = Compiling(
            program,
            old.since if old else entries[0][2],
            entries[-1][2],
            tuple(sorted(stores)),
            len(entries) + (old.entries if old else 0),
        )
        models = await self._context.read(all_models) if program.serves else ()
        if old is None:
            self._tell(now, mend(program, models))
        if program.serves:
            self._context.problems.note(compiling(now, mend(program, models)))

    def _tell(self, one: Compiling, hint: str) -> None:
        """Say it once for each start of a program."""
        who = one.program
        fields = {
            "unit": who.unit,
            "program": who.name,
            "command": who.command,
            "pid": str(who.pid),
            "uid": str(who.uid),
            "since": one.since.isoformat(),
            "entries": str(one.entries),
            "stores": " ".join(map(str, one.stores)),
            "hint": hint,
        }
        message = f"{who.label} (pid {who.pid}) compiles and makes its users wait: {one.entries} new entries so far"
        self._context.events.post("compiling-while-serving" if who.serves else "compiled", message, fields)
        if who.serves:
            log.warning("%s; %s: unit %s, uid %d, since %s", message, hint, who.unit, who.uid, fields["since"])

    def _forget(self) -> None:
        now = self._context.clock()
        over = [one for one, said in self._compiling.items() if now - said.last > _SHOWN]
        extra = sorted(self._compiling, key=lambda one: self._compiling[one].last)[
            : max(0, len(self._compiling) - _MOST)
        ]
        for program in {*over, *extra}:
            del self._compiling[program]
            if all(one.label != program.label for one in self._compiling):
                self._context.problems.clear("compiling-while-serving", program.label)


def mend(program: Program, models: tuple[Model, ...]) -> str:
    """Return the command that finds out why a program had to compile, or that registers what it runs."""
    for model in models:
        if program.unit in model.before:
            return f"see: xpucachectl why {model.name}"
    before = f" --before {program.unit}" if program.serves else ""
    return f"register what it runs: xpucachectl model add NAME{before} -- COMMAND"


def compiling(one: Compiling, hint: str) -> Problem:
    """Say that a service compiles."""
    who = one.program
    return Problem(
        "compiling-while-serving",
        f"{who.label} wrote {one.entries} new entries since {one.since:%Y-%m-%d %H:%M:%S} UTC, and its users waited for"
        f" each (pid {who.pid}, uid {who.uid})",
        hint,
        who.label,
    )
