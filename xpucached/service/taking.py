"""Bundles that lie on this host (`bundles.folder`) are taken in before anything is compiled.

Another unit fetches them: a daemon has no network.  They are read by a child, which takes what a trusted key has signed
and nothing else, as ``bundle import --unattended`` does; what fits is published, the rest is compiled from its recipes.
That may take hours, so it is done in turns, between which goes whatever else changes entries.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import math
import os
import stat
import threading
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Final, NamedTuple, cast

from xpucached import codec, deadlines, messages
from xpucached.bundle.revocations import state_of
from xpucached.catalog.builds import record_import
from xpucached.domain.bundles import ImportBundle, ImportReport
from xpucached.domain.imports import EntriesCame, together
from xpucached.errors import BadBundle, Unsigned, WrongHost, XpucachedError
from xpucached.processes import child, polling
from xpucached.processes.cancellation import ended
from xpucached.service.owners import answers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    from xpucached.service.context import Context
    from xpucached.service.scan import StoreScanner

    Note = Callable[[Sequence[EntriesCame]], None]

_FILES: Final = 1000
"""Files of a bundle that are looked at; one has a few for each of its members."""
_MOST: Final = 64
"""Bundles in the folder that are taken in."""
_NAMES: Final = 4096
"""Names in the folder that are looked at: others may be able to write there."""
_LARGEST: Final = 64 << 20
_TURN: Final = 60.0
"""Seconds after which no further program or recipe of a bundle is begun before others had their turn."""
_SECONDS: Final = 1800.0
"""Seconds that a turn may take altogether, with reading the bundle before it, and what was begun."""
_STEP: Final = 0.2


_PAUSE: Final = 60.0
_LONGEST_PAUSE: Final = 3600.0
"""Seconds after which what was refused for what passes is tried again: each time twice as many, up to this."""


class _Refusal(NamedTuple):
    """Why a bundle was not taken in, and when it is tried again."""

    error: XpucachedError
    pause: float  #: seconds
    at: float  #: of the monotonic clock
    hint: str


class BundleTaker:
    """Takes in what lies there: each bundle once for each driver.  Used from one event loop."""

    def __init__(self, context: Context, scanner: StoreScanner) -> None:
        self._context = context
        self._scanner = scanner
        self._taken: dict[tuple[object, ...], _Refusal | None] = {}
        """What was taken in, or why it was not."""
        self._begun: dict[tuple[object, ...], int] = {}
        """What is taken in by and by, and with which of its recipes to go on."""
        self._looks = False
        """Whether all that lies there was seen to in the last turn: else there is nothing to go on with at once."""
        self._retry = math.inf
        """When (monotonic) something is to be tried again."""

    @property
    def unfinished(self) -> bool:
        """Whether there is something to go on with."""
        return self._looks and bool(self._begun)

    @property
    def again(self) -> float | None:
        """Seconds after which something that was refused is to be tried again; None if nothing is."""
        return None if self._retry == math.inf else max(0.0, self._retry - time.monotonic())

    @property
    def _refused(self) -> list[_Refusal]:
        """Why what is not taken in is not, what passes first at the beginning; what is gone on with has passed."""
        some = (one for key, one in self._taken.items() if one is not None and key not in self._begun)
        return sorted(some, key=lambda one: one.at)

    def trusted(self) -> tuple[object, ...]:
        """Return what is another when another key, or revocation, is there.  Blocks."""
        return tuple(map(_state_of, self._context.settings.key_folders))

    async def take(self) -> None:
        """Take in what is new, or was not for this driver, for a turn.  Raises what was wrong with one, at the end."""
        bundles, host = self._context.settings.bundles, self._context.present
        self._looks, self._retry = False, math.inf
        if not bundles.take or not host.offered:
            self._begun = {}
            return
        trusted = await asyncio.to_thread(self.trusted)
        try:
            found, passed = await asyncio.to_thread(
                deadlines.ask, bundles.folder, functools.partial(_lying, bundles.folder)
            )
        except OSError as error:
            silent = isinstance(error, TimeoutError)
            why = "its file system does not answer" if silent else f"it cannot be read: {error.strerror}"
            closed = XpucachedError(f"{bundles.folder}: {why}", hint="see: findmnt" if silent else "")
            refusal = self._refusal(closed, self._taken.get(()))
            self._taken, self._retry = {**self._taken, (): refusal}, refusal.at
            self._tell()
            return
        # What is refused for what it is, is so until it, the driver, or whom we trust is another.
        due = {(*key, trusted, host.drivers_met): path for key, path in found.items()}
        self._begun = {key: number for key, number in self._begun.items() if key in due}
        for key, path in due.items():
            before = self._taken.get(key)
            if key not in self._taken or (before is not None and before.at <= time.monotonic()):
                await self._one(key, path)
        self._taken = {key: wrong for key, wrong in self._taken.items() if key in due}
        self._looks = True
        self._retry = min((one.at for one in self._refused), default=math.inf)
        self._tell()
        if passed:
            message = f"{bundles.folder}: {passed} more lie there than are looked at, which are {_MOST} bundles"
            raise XpucachedError(message, hint="remove what nobody needs there; the first of the names are taken in")

    def _tell(self) -> None:
        """Raise why something is not taken in, and what passes first."""
        refused = self._refused
        for one in refused:
            more = f"; and so are {len(refused) - 1} more" if len(refused) > 1 else ""
            raise XpucachedError(f"{one.error.message}{more}", hint=one.hint)

    async def _one(self, key: tuple[object, ...], path: Path) -> None:
        wrong, following = None, None
        try:
            if not await asyncio.to_thread(answers, path):
                raise XpucachedError(f"{path}: its file system does not answer")  # noqa: TRY301 - as the child would
            async with self._context.locks.changing:
                following = await self._take(path, self._begun.get(key, 0))
        except XpucachedError as error:
            wrong = self._refusal(error, self._taken.get(key))
        if following is None:
            self._taken[key] = wrong
            self._begun.pop(key, None)
        else:
            self._begun[key] = following

    def _refusal(self, error: XpucachedError, before: _Refusal | None) -> _Refusal:
        """Say when what was refused is tried again: each time after twice as long, unless it is for what it is."""
        if isinstance(error, BadBundle | Unsigned):
            lasting = "it is tried again when the bundle, the driver or the keys are others"
            return _Refusal(error, math.inf, math.inf, f"{error.hint}; {lasting}" if error.hint else lasting)
        pause = _PAUSE if before is None else min(2 * before.pause, _LONGEST_PAUSE)
        when = self._context.clock() + timedelta(seconds=pause)
        passing = f"it is tried again after {when:%Y-%m-%d %H:%M} UTC"
        return _Refusal(error, pause, time.monotonic() + pause, f"{error.hint}; {passing}" if error.hint else passing)

    async def _take(self, path: Path, first: int) -> int | None:
        """Take a bundle in from that recipe on; give with which to go on, None if all was seen to."""
        cancel = threading.Event()
        # A worker does not have its user's places, but those that systemd says.
        places = {"XPUCACHED_PATHS_CACHE": str(self._context.settings.paths.cache)}
        order = ImportBundle(path, unattended=True, seconds=_TURN, first=first)
        stores: set[Path] = set()

        def note(came: Sequence[EntriesCame]) -> None:
            for one in came:
                now = self._context.clock()
                catalog = self._context.catalog
                write = catalog.write_durably if one.coming else catalog.write
                write(record_import, one.made, one.bundle, one.source, now, coming=one.coming)
                stores.update(each.store for each in one.made)

        base = {**self._context.base, **places}
        doing = asyncio.ensure_future(asyncio.to_thread(_imported, order, base, cancel, note))
        try:
            report = await ended(doing, cancel.set)
        except (OSError, XpucachedError) as error:
            # What came before that is in its store, and noted.
            if stores:
                await self._scanner.scan_stores(frozenset(stores))
            if isinstance(error, OSError):
                why = error.strerror or error
                raise XpucachedError(f"{path}: the program for bundles cannot be started: {why}") from error
            raise
        if report is None or not report.made:
            return None if report is None else report.next
        # What came of each was noted as it came; of the others are those that were there.
        for source in report.sources:
            await self._context.write(record_import, (), report.view.digest, source, self._context.clock())
        await self._scanner.scan_stores(frozenset(stores))
        words = f"{report.published} programs taken from a bundle, {report.rebuilt} compiled from its recipes"
        told = {"bundle": report.view.digest, "published": str(report.published), "rebuilt": str(report.rebuilt)}
        self._context.events.post("bundle-taken", words, told)
        return report.next


def _state_of(folder: Path) -> tuple[object, ...]:
    try:
        return deadlines.ask(folder, functools.partial(state_of, folder))
    except TimeoutError as error:
        return (error.errno,)


def _lying(folder: Path) -> tuple[dict[tuple[object, ...], Path], int]:
    """Return the bundles in a folder, by what tells each from others under its name, and how many are too many.

    Raises `OSError` where a folder is there and cannot be read.
    """
    found: dict[tuple[object, ...], Path] = {}
    try:
        with os.scandir(folder) as entries:
            named = (one.name for one in entries if not one.name.startswith(".") and one.name != "lost+found")
            names = sorted(named)
    except FileNotFoundError:
        return {}, 0  # nobody fetches any
    passed = len(names[_NAMES:])
    for name in names[:_NAMES]:
        try:
            status: os.stat_result | None = _first(folder / name)
        except PermissionError:
            # Whoever takes it in is told what is closed.
            status = None
        except OSError:
            continue
        if len(found) == _MOST:
            passed += 1
            continue
        if status is None:
            found[name, 0, 0] = folder / name
            continue
        now = status.st_ino, status.st_mtime_ns, status.st_size
        found[name, *now, *_grown(folder / name / "blobs/sha256")] = folder / name
    return found, passed


def _first(bundle: Path) -> os.stat_result:
    """Return what the file is that tells what is in a bundle: of one in a tar file that file."""
    try:
        return (bundle / "index.json").lstat()
    except NotADirectoryError:
        found = bundle.lstat()
        if bundle.suffix != ".tar" or not stat.S_ISREG(found.st_mode):
            raise
        return found


def _grown(folder: Path) -> tuple[int, ...]:
    """Return what changes as long as somebody copies into a bundle: how many files it has, and how large they are."""
    try:
        with os.scandir(folder) as entries:
            sizes = [one.stat(follow_symlinks=False).st_size for one in itertools.islice(entries, _FILES)]
    except OSError:
        return ()
    return len(sizes), sum(sizes)


def _imported(order: ImportBundle, base: Mapping[str, str], cancel: threading.Event, note: Note) -> ImportReport | None:
    """Have a child take a bundle in; None if nothing in it is for this host.  Raises what it refused.

    What came is noted meanwhile, however it ends.
    """
    path = order.source
    ours = {name: text for name, text in base.items() if name.startswith("XPUCACHED_")}
    with child.Pipes() as pipes:
        told = pipes.content("order", codec.dumps(codec.to_json(order)))
        answers, theirs = pipes.from_child()
        goes_on, hears = pipes.to_child()
        words = ("--order", str(told), "--fd", str(theirs), "--ack", str(hears))
        command = [*child.module("xpucached.bundling"), *words]
        started = child.start(command, variables=child.environment(ours, base=base), pipes=pipes)
        heard = _Heard(answers, goes_on, note)
        try:
            heard.listen(cancel)
        finally:
            child.end(started)
            heard.rest()
    try:
        match messages.parse(heard.last, largest=_LARGEST, depth=32, escaped_bytes=True):
            case {"report": report}:
                return cast("ImportReport", codec.convert(report, ImportReport))
            case {"error": {"code": WrongHost.code}}:
                return None
            case {"error": {"code": code, "message": str(message), "hint": str(hint)}}:
                raise refused(str(code), f"{path}: {message}", hint)
            case _:
                raise XpucachedError(f"{path}: the program for bundles ended without an answer")
    except messages.BadMessage as error:
        raise XpucachedError(f"{path}: the program for bundles answered what cannot be read: {error}") from error


def refused(code: str, message: str, hint: str) -> XpucachedError:
    """Return what a child refused: by its kind, if it is for what the bundle is, and not for what passes."""
    kind = next((one for one in (BadBundle, Unsigned) if one.code == code), XpucachedError)
    return kind(message, hint=hint)


class _Heard:
    """What a child says, line by line."""

    def __init__(self, answers: int, goes_on: int, note: Note) -> None:
        """What comes goes into its store when ``goes_on`` has a byte for it, and not before it was noted."""
        self._answers = answers
        self._goes_on = goes_on
        self._note = note
        self._begun = bytearray()
        self.last = b""  #: the last line

    def listen(self, cancel: threading.Event) -> None:
        """Hear it until it ends, or until it is to end."""
        deadline = time.monotonic() + _SECONDS
        while not cancel.is_set() and time.monotonic() < deadline:
            if polling.readable(self._answers, seconds=_STEP) and not self._hear():
                return

    def rest(self) -> None:
        """Hear what it said before it was ended."""
        while polling.readable(self._answers, seconds=0) and self._hear():
            pass

    def _hear(self) -> bool:
        """Read a piece, and note what came; return whether more may come."""
        piece = os.read(self._answers, 1 << 16)
        self._begun += piece
        if b"\n" in piece:
            *lines, begun = bytes(self._begun).split(b"\n")
            self._begun, self.last = bytearray(begun), lines[-1]
            came = [*filter(None, map(_came, lines))]
            self._note(together(came))
            acknowledge(self._goes_on, came)
        return bool(piece) and len(self._begun) < _LARGEST


def acknowledge(goes_on: int, came: Iterable[EntriesCame]) -> None:
    """Let a child put into stores of what it said that it comes."""
    with contextlib.suppress(OSError):  # it has ended
        os.write(goes_on, b"." * sum(one.coming for one in came))


def _came(line: bytes) -> EntriesCame | None:
    """Return what a line says that came; None if it says something else."""
    if not line.startswith(b'{"came"'):
        return None
    try:
        said = messages.members(messages.parse(line, largest=_LARGEST, escaped_bytes=True))
    except messages.BadMessage:
        return None
    return cast("EntriesCame", codec.convert(said["came"], EntriesCame))
