"""Door: the commands about bundles.  A program of its own does it; it is started here, and its report printed."""

from __future__ import annotations

import contextlib
import os
import re
import sys
import threading
from typing import TYPE_CHECKING, Final, cast

from xpucached import codec, messages
from xpucached.api.endpoints import VERSION
from xpucached.cli import hints, option_values, terminal
from xpucached.cli.bars import told_in_steps
from xpucached.domain.bundles import (
    Binaries,
    BundleOrder,
    BundleReplayReport,
    BundleReport,
    DiffBundles,
    DiffReport,
    ExportBundle,
    FetchBundles,
    FetchReport,
    ImportBundle,
    ImportReport,
    InspectBundle,
    MakeKey,
    MergeBundles,
    PullBundle,
    PushBundle,
    RegistryAccess,
    ReplayBundle,
    SendBundle,
)
from xpucached.domain.imports import EntriesCame, together
from xpucached.errors import Denied, RequestError, RunFailed, Unavailable, Untrusted, XpucachedError
from xpucached.printing import plain
from xpucached.processes import child, credential_helper
from xpucached.render import bundles

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from typing import BinaryIO

    from xpucached.domain.fleet import FleetOrder

_LARGEST: Final = 64 << 20
"""Bytes of a report."""
_LONGEST_COMPLAINT: Final = 16 << 10
_PATIENCE: Final = 5.0
_OURS: Final = ("XPUCACHED_", "DASK_")
"""How variables begin that steer the program, and the library by which it reaches a cluster."""


def _export(given: Namespace) -> BundleOrder:
    return ExportBundle(
        given.dest,
        given.store,
        given.kind,
        given.model,
        given.driver,
        given.device,
        given.recipes_only,
        given.compression,
        given.allow_switches,
        given.with_names,
        given.driver_root,
        given.pretended,
        _key(given.sign),
        given.made_here,
    )


def _key(given: str | None) -> str | None:
    """Return a key as it was given: as text, or the path of its file, from here or from the environment."""
    if given is not None and "-----BEGIN" in given:
        hint = "name its file, or put it into the variable XPUCACHED_SIGNING_KEY"
        raise RequestError("everybody on this host can read a key on a command line", hint=hint)
    given = given or os.environ.get("XPUCACHED_SIGNING_KEY")
    return given if given is None or "-----BEGIN" in given else str(option_values.absolute(given))


def _import(given: Namespace) -> BundleOrder:
    return ImportBundle(given.source, given.into, Binaries(given.binaries), given.dry_run, given.unattended)


def _replay(given: Namespace) -> BundleOrder:
    if given.into is None:
        raise RequestError("replay --bundle needs a place for what it makes: --into DIR")
    if given.on is not None and given.shard != _WHOLE:
        raise RequestError("--on makes parts itself", hint="leave out --shard, or --on")
    places = (given.driver_root, given.device, given.driver_cache)
    cluster = "" if given.on is None else _cluster(given.on)
    return ReplayBundle(given.bundle, given.into, _shard(given.shard), *places, given.keep_going, cluster=cluster)


_WHOLE: Final = "0/1"
_NUMBER: Final = re.compile(r"[0-9]{1,9}", re.ASCII)
_SCHEDULER: Final = re.compile(r"dask(\+tls)?://((?:[\w.-]+|\[[0-9A-Fa-f:.]+\]):[0-9]{1,5})", re.ASCII)


def _cluster(text: str) -> str:
    """Read where a scheduler is; give its address as it is called there.  Raises `RequestError`."""
    found = _SCHEDULER.fullmatch(text)
    if found is None:
        raise RequestError(f"no scheduler {text!r}", hint="expected dask://HOST:PORT, or dask+tls://HOST:PORT")
    return f"{'tls' if found[1] else 'tcp'}://{found[2]}"


def _is_system(given: Namespace) -> bool:
    return given.scope == "system" or (given.scope is None and os.geteuid() == 0)


def _access(given: Namespace) -> RegistryAccess:
    return RegistryAccess(given.ca_file, given.plain_http, given.token_host.casefold(), given.patience)


_COUNTING: Final = (
    ("JOB_COMPLETION_INDEX", "JOB_COMPLETIONS", ""),
    ("SLURM_ARRAY_TASK_ID", "SLURM_ARRAY_TASK_COUNT", "SLURM_ARRAY_TASK_MIN"),
)
"""Variables of systems that run one command many times: which one this is, of how many, and the first one's number."""


def _shard(text: str) -> tuple[int, int]:
    """Read ``I/N``, or the variables of a system that counts.  Raises `RequestError`."""
    if text == "auto":
        index, count, first = next(
            (one for one in _COUNTING if one[0] in os.environ and one[1] in os.environ), ("",) * 3
        )
        if not index:
            names = " or ".join(f"{one[0]} and {one[1]}" for one in _COUNTING)
            raise RequestError(f"nothing says which part this is: {names}", hint="or say it: --shard 0/4")
        least, mine = os.environ.get(first, "0"), os.environ[index]
        counts = _NUMBER.fullmatch(least) and _NUMBER.fullmatch(mine)
        text = f"{int(mine) - int(least) if counts else mine}/{os.environ[count]}"
    number, _, of = text.partition("/")
    if not (_NUMBER.fullmatch(number) and _NUMBER.fullmatch(of) and int(number) < int(of) <= _MOST_SHARDS):
        raise RequestError(f"no part {text[:80]!r}", hint="expected I/N, such as 0/4, 1/4, 2/4 and 3/4")
    return int(number), int(of)


_MOST_SHARDS: Final = 100_000


ORDERS: Final[Mapping[str, Callable[[Namespace], BundleOrder]]] = {
    "bundle export": _export,
    "bundle inspect": lambda given: InspectBundle(given.source),
    "bundle verify": lambda given: InspectBundle(given.source, deep=True),
    "bundle import": _import,
    "bundle merge": lambda given: MergeBundles(tuple(given.sources), given.dest, given.compression, _key(given.sign)),
    "bundle push": lambda given: PushBundle(
        given.source, given.reference, _access(given), given.mount_from, given.if_changed
    ),
    "bundle pull": lambda given: PullBundle(given.reference, given.dest, _access(given)),
    "bundle fetch": lambda given: FetchBundles(_is_system(given)),
    "bundle send": lambda _: SendBundle(),
    "bundle keygen": lambda given: MakeKey(given.name),
    "bundle diff": lambda given: DiffBundles((given.first, given.second)),
}


def run(options: Namespace) -> int:
    """Have it done, and print what came of it; gives the exit status."""
    make = _replay if options.verb == "replay" else ORDERS[options.verb]
    came: list[EntriesCame] = []
    try:
        data = asked(make(options), quiet=options.quiet, came=came, coming=_Foreteller(options))
    except BaseException:
        # What came before that is in its store.
        _tell_daemon(options, came)
        raise
    report = cast("BundleReport", codec.convert(data, BundleReport))
    if options.json:
        print(codec.dumps({"api": VERSION, "data": data}).decode("ascii"))
    elif options.quiet:
        print(bundles.names(report))
        # Who wants names alone, as the unit that fetches at boot does, has to hear all the same why there are none.
        for one in report.bundles if isinstance(report, FetchReport) else ():
            if one.error:
                print(f"xpucachectl: {plain(one.reference)}: {plain(one.error)}", file=sys.stderr)
    else:
        print(hints.aimed(bundles.report(report, terminal.style(options)), "", os.environ))
    _tell_daemon(options, came)
    match report:
        case DiffReport(changes=[_, *_]) | ImportReport(failures=[_, *_]):
            return RunFailed.exit
        case BundleReplayReport(failures=[_, *_], keep_going=False):
            return RunFailed.exit
        case FetchReport() if any(one.error for one in report.bundles):
            return RunFailed.exit
    return 0


def _tell_daemon(options: Namespace, came: Sequence[EntriesCame]) -> None:
    """Let the daemon note where the entries came from, and look at them; without one they are only found later."""
    if not came:
        return
    try:
        _note(options, came)
    except XpucachedError as error:
        # Where an image is built nobody expects one.
        if options.verb != "replay":
            words = f"no daemon noted where these entries came from: {plain(error.message)}"
            print(f"xpucachectl: {words}", file=sys.stderr)


def _note(options: Namespace, came: Iterable[EntriesCame]) -> None:
    """Have the daemon note of whom entries are.  Raises `XpucachedError` where there is none."""
    # What asks a daemon takes as long to load as a small bundle to read.
    from xpucached.api import imports  # noqa: PLC0415 - see above
    from xpucached.cli import connect  # noqa: PLC0415 - see above

    client, hosts = connect.reach(options)
    # The stores are ours, and the host's daemon has none.
    with connect.own() if hosts else client as client:
        for one in together(came):
            for made in imports.parts(one.made):
                of = {name: getattr(one.source, name) for name in one.source.__struct_fields__}
                # A replay fills a store apart, which nobody need look at for it.
                kind = imports.NoteComing if one.coming or options.verb == "replay" else imports.NoteImport
                client.call(kind(bundle=one.bundle, made=made, **of))


class _Foreteller:
    """Has the daemon note of whom entries are before they are there: we, and who puts them there, may be killed.

    One that answers and does not note it, or goes away meanwhile, ends it: nothing more is put there.
    """

    def __init__(self, options: Namespace) -> None:
        self._options = options
        self._noted = self._silent = False

    def __call__(self, one: EntriesCame) -> None:
        """Have it noted; that there is no daemon is told when all is done."""
        if self._silent:
            return
        try:
            if self._noted:
                from xpucached.cli.progress import until_back  # noqa: PLC0415 - as in `_note`

                until_back(lambda: _note(self._options, (one,)))
            else:
                _note(self._options, (one,))
        except (Unavailable, Untrusted, Denied):
            if self._noted:
                raise
            self._silent = True
        else:
            self._noted = True


class _Complaint:
    """The end of what a program says on stderr: it may quote a bundle, and what it loads may say anything."""

    def __init__(self, started: child.Process) -> None:
        self._end = bytearray()
        # A descriptor of our own: the other one is closed when the program is ended.
        source = os.dup(started.stderr.fileno()) if started.stderr is not None else None
        self._thread = threading.Thread(target=self._read, args=(source,), name="complaint", daemon=True)
        self._thread.start()

    def _read(self, source: int | None) -> None:
        if source is None:
            return
        with os.fdopen(source, "rb", buffering=0) as file:
            while piece := file.read(1 << 16):
                self._end += piece
                del self._end[:-_LONGEST_COMPLAINT]

    def tell(self) -> None:
        """Print it, as far as a terminal may see it; the program has ended."""
        self._thread.join(_PATIENCE)
        for line in bytes(self._end).decode("utf-8", "backslashreplace").splitlines():
            print(plain(line), file=sys.stderr)


def asked(
    order: BundleOrder | FleetOrder,
    *,
    quiet: bool,
    came: list[EntriesCame] | None = None,
    coming: Callable[[EntriesCame], None] = lambda _: None,
) -> messages.Json:
    """Start the program, show how far it is, and give its report.  Raises what it refused.

    However it ends, ``came`` is what came into stores; ``coming`` is told before of what is put there when it returns.
    """
    came = [] if came is None else came
    with child.Pipes() as pipes, told_in_steps(quiet=quiet) as show, contextlib.ExitStack() as stack:
        orders = pipes.content("order", codec.dumps(codec.to_json(order)))
        answers, theirs = pipes.from_child()
        goes_on, hears = pipes.to_child()
        lines = stack.enter_context(os.fdopen(os.dup(answers), "rb"))
        descriptors = ("--order", str(orders), "--fd", str(theirs), "--ack", str(hears))
        command = [*child.module("xpucached.bundling"), *descriptors]
        more = {one: os.environ[one] for one in os.environ if one.startswith(_OURS)}
        if isinstance(order, PushBundle | PullBundle | FetchBundles | SendBundle):
            more |= credential_helper.variables(os.environ)
        started = child.start(
            command,
            variables=child.environment(more),
            stderr=child.PIPE,
            pipes=pipes,
        )
        complaint = _Complaint(started)
        try:
            while line := lines.readline(_LARGEST):
                match _read(line):
                    case {"progress": [int(done), int(total), str(words)]}:
                        show(done, total, words)
                    case {"came": entries}:
                        one = cast("EntriesCame", codec.convert(entries, EntriesCame))
                        if one.coming:
                            coming(one)
                            with contextlib.suppress(OSError):  # it has ended
                                os.write(goes_on, b".")
                        else:
                            came.append(one)
                    case {"report": report}:
                        return report
                    case {"error": {"code": str(code), "message": str(message), "hint": str(hint)}}:
                        from xpucached.api.client import refusal  # noqa: PLC0415 - as in `_tell_daemon`

                        raise refusal(code, message, hint)
                    case _:
                        break
        except messages.BadMessage as error:
            raise XpucachedError(f"the program for bundles answered what cannot be read: {error}") from error
        finally:
            status = child.end(started)
            complaint.tell()
            came += (one for one in _rest(answers, lines) if not one.coming)
    raise XpucachedError(f"the program for bundles ended without an answer, with status {status}")


def _read(line: bytes) -> Mapping[str, messages.Json]:
    return messages.members(messages.parse(line, largest=_LARGEST, depth=32, escaped_bytes=True))


def _rest(answers: int, lines: BinaryIO) -> Iterator[EntriesCame]:
    """Yield what a program that was ended had said that came."""
    os.set_blocking(answers, False)
    with contextlib.suppress(messages.BadMessage):
        while (line := lines.readline(_LARGEST)).endswith(b"\n"):
            match _read(line):
                case {"came": entries}:
                    yield cast("EntriesCame", codec.convert(entries, EntriesCame))
