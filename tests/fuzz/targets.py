"""What is fuzzed: each target takes any bytes, and raises only where something is wrong with us.

A target checks more than that nothing is raised: what is read must be what stands there, and what comes out is bounded.
"""

from __future__ import annotations

import asyncio
import io
import json
import os
import re
import shutil
import socket
import struct
import tempfile
import zipfile
from contextlib import closing, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tests.support import bundles
from tests.support.api_stub import Standin, handlers, owner_only
from tests.support.builders import framed, native, spirv
from tests.support.bundles import tar
from tests.support.device_images import archives
from tests.support.device_images import program as linked
from tests.support.runtimes import told
from xpucached import messages
from xpucached.api import intake, requests
from xpucached.binaries import formats, zebin
from xpucached.bundle import members
from xpucached.bundling.inspecting import checked
from xpucached.catalog import Catalog
from xpucached.catalog.coverage import model_coverage
from xpucached.catalog.entries import all_entries
from xpucached.catalog.intents import open_intents
from xpucached.catalog.models import add_model, all_models
from xpucached.catalog.runs import close_lost_runs, newest_runs
from xpucached.catalog.stores import all_stores
from xpucached.catalog.surveys import last_survey
from xpucached.catalog.targets import target_presence
from xpucached.domain.host import Process
from xpucached.domain.inspection import Availability
from xpucached.domain.models import Model, Workload
from xpucached.domain.names import ModelName
from xpucached.domain.stores import EntryState, FoundStore, ImageFormat, Store, StoreOrigin, StoreState
from xpucached.domain.workloads import Loader, RunSpec
from xpucached.errors import BadBundle, CatalogError, MissingExtra, RequestError, SettingsError
from xpucached.host import elf
from xpucached.host.gpu_devices import known
from xpucached.inspection import acceptance, containers
from xpucached.inspection import device_code as inspection_of_code
from xpucached.inspection.content import MemoryContent, Unreadable
from xpucached.inspection.zips import ZipArchive
from xpucached.kinds import demangling, images, sycl
from xpucached.kinds.neo import lookup_key, soundness, totals
from xpucached.kinds.neo import trace as lookup_trace
from xpucached.kinds.sycl import entry_format, makers
from xpucached.kinds.sycl.entry_format import is_place
from xpucached.kinds.sycl.slots import ORDER
from xpucached.kinds.trash_labels import loads
from xpucached.server.connection import Connection, ConnectionLimits, ConnectionPool
from xpucached.server.connection import configuration as http_configuration
from xpucached.server.routes import Routes
from xpucached.settings import loading, model_files

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

CORPUS: Final = Path(__file__).parent / "corpus"
"""Entries that a real runtime (2025.2, on a CPU) wrote."""

DRIVERS: Final = Path(__file__).parent.parent / "kinds" / "neo"
"""Entries, and traces, that a GPU's real driver (26.27, simulated devices) wrote."""


def _check(holds: object, what: str) -> None:
    # Not `assert`: a fuzzer may run with assertions off.
    if not holds:
        raise AssertionError(what)


# -- what runtimes and drivers write ----------------------------------------------------------------------------------


def source(data: bytes) -> None:
    """Read a ``.src``; the first byte says how much longer the file is than what was read of it."""
    beyond = (0, 0, 0, 1, 8, 1 << 20, 1 << 40, 1 << 62)[data[0] & 7] if data else 0
    data = data[1:]
    read = entry_format.source(data, len(data) + beyond)
    fields = (read.device, read.options, read.constants, read.image)
    _check(sum(map(len, fields)) <= len(data), "bytes from nowhere")
    _check(read.complete or read.defect is not None, "incomplete without a defect")
    if read.whole:
        again = framed(*fields)
        _check(data.startswith(again), "another text was read than stands there")
        _check(
            (read.defect == sycl.defects.SRC_TRAILING) == (len(again) < len(data) + beyond),
            "what follows is miscounted",
        )
        _check(all(entry_format.NUMBER.match(name) for name in read.directories), "a place that is no place")
    environment = sycl.targets.parse(entry_format.text(read.device))
    _check(
        environment is None or sycl.targets.identity(environment) == entry_format.text(read.device),
        "another device was read",
    )


def binary(data: bytes) -> None:
    """Read the frame of a ``.bin`` and judge what it holds."""
    frame = entry_format.frame(data[:16], len(data), lambda at: data[at : at + 8])
    _check(0 <= frame.offset + frame.length <= len(data), "a program beyond the end of its file")
    _check(
        frame.length > 0 or frame.defect is not None or len(data) >= struct.calcsize("<QQ"), "nothing, and no defect"
    )
    image(data[frame.offset : frame.offset + frame.length])


def image(data: bytes) -> None:
    """Read a device image or a compiled program of any format."""
    kind = formats.image_format(data)
    _check(isinstance(kind, ImageFormat), "no format")
    _check(0 <= formats.modules(data) <= 2, "more modules than were asked for")
    found = images.kernels(data)
    _check(sum(len(one.name) for one in found) <= 1 << 20, "the names together are too long")
    for intel in (True, False):
        words = images.damage(data, intel=intel)
        _check(words is None or 0 < len(words) < 500, "a verdict without words")


def name(data: bytes) -> None:
    """Demangle a kernel's name."""
    mangled = b"_Z" + data
    printed = demangling.printed(mangled)
    _check(printed is None or printed >= 0, "a name of negative length")
    _check(len(images.kernel(mangled).display) <= 5000, "a display without bounds")


def trace(data: bytes) -> None:
    """Read what a program printed where its trace should be."""
    root = Path("/s/libsycl_cache")
    created, used = told(root, data.decode("utf-8", "surrogateescape").split("\n"))
    for key in created | used:
        _check(not key.startswith("/") and ".." not in key.split("/"), "a key that leads out of its store")
    _check(not created & used, "both made and found")


def label(data: bytes) -> None:
    """Read the label of an entry in the trash."""
    try:
        read = loads(data, is_place, ORDER)
    except ValueError:
        return
    _check(is_place(read.key.split("/")), "a key that is no place")
    _check(all(suffix in entry_format.SLOT_SUFFIXES for suffix in read.files), "a file that is none of a slot's")
    _check(0 <= read.mode <= 0o777, "a mode with more than permissions")
    _check(loads(read.dumps(), is_place, ORDER).key == read.key, "what was read cannot be written")


_made: Final[list[tempfile.TemporaryDirectory[str]]] = []
"""Where a store is, for what is read from files only; `close` removes it."""


def zebin_entry(data: bytes) -> None:
    """Read an entry of the GPU driver's cache, and the numbers beside it."""
    words = soundness.damage(data)
    _check(words is None or 0 < len(words) < 500, "a verdict without words")
    with suppress(ValueError):
        read = zebin.read(data)
        _check(read.input_size <= len(data), "bytes from nowhere")
        _check((read.input is None) == (read.input_size == 0), "a digest of nothing")
        _check(len(read.options) <= 4 * (64 << 10), "options without bounds")
        _check(len(read.version) <= 4 * 64, "a version without bounds")
        _check(read.ip is None or zebin.ip_text(read.ip).count(".") == 2, "an IP version that is none")
    total, lookups = totals.total(data), totals.lookups(data)
    _check(totals.total_bytes(total).startswith(data[:8]), "another total was read than stands there")
    _check(lookups is None or len(data) == totals.STATS_SIZE, "counters from nowhere")


def lookup(data: bytes) -> None:
    """Read a trace of the GPU driver, and make the name again."""
    lookup_key.update(lookup_key.begun(), data)
    with suppress(ValueError):
        read = lookup_trace.read(data)
        _check(len(read.options) + len(read.internal) + len(read.constants) <= len(data), "bytes from nowhere")
        _check(
            re.fullmatch("[0-9a-f]{16}", lookup_trace.KeyMaker().key(read, data, read.device)), "a name that is none"
        )


def device_code(data: bytes) -> None:
    """Judge a device image for each of the known architectures."""
    code = inspection_of_code.judge(data)
    _check(len(code.programs) <= 4096, "more members than are looked at")
    for rule in _RULES:
        availability = acceptance.gpu_availability(code, rule)
        _check(availability is not Availability.READY or code.programs, "code from nowhere")
    _check(acceptance.cpu_availability(code, "spir64") is not Availability.READY, "code for a processor from nowhere")


def program(data: bytes) -> None:
    """Look for device images in a program, a bundle or whatever else."""
    content = MemoryContent(data)
    with suppress(Unreadable):
        for one in containers.images(content):
            _check(0 <= one.offset <= one.offset + one.size <= len(data), "an image beyond the end of its file")
            inspection_of_code.read(content, one.offset, one.size, target=one.target, named=bool(one.kernels))


def wheel(data: bytes) -> None:
    """Unpack a wheel."""
    with suppress(Unreadable):
        archive = ZipArchive(MemoryContent(data))
        made = 0
        for member in archive.members():
            with suppress(Unreadable):
                _check(len(archive.beginning(member)) <= 64, "a beginning that is too long")
                with archive.unpack(member) as content:
                    _check(content.size == member.size, "another size than the archive told")
                    made += member.packed
        _check(made <= len(data), "more was unpacked than there is")


_SHAPES: Final = ("index.json", "index", "manifest", "config", "packed", "layer", "tar")
"""What of a bundle is replaced; all else is right, and so are all digests."""


def bundle(data: bytes) -> None:
    """Read a bundle of which one part is replaced; the first byte says which."""
    shape, data = _SHAPES[data[0] % len(_SHAPES)] if data else "tar", data[1:]
    place = _root().parent / "bundle"
    place.mkdir(parents=True, exist_ok=True)
    path = place / "bundle.tar"
    if shape == "tar":
        path.write_bytes(data)
    else:
        path.write_bytes(tar(bundles.layout({shape: lambda _: data})))
    with suppress(BadBundle, MissingExtra):
        opened = members.opened(path)
        with opened.layout:
            for member in opened.members:
                found = list(checked(opened, member))
                _check(len(found) == member.facts.entries, "another number of entries than it says")
            _check(len(opened.view.digest) == 71, "no digest")


_RULES: Final = tuple(acceptance.rules(gpu) for gpu in {one.architecture: one for one in known().values()}.values())


def _root() -> Path:
    if not _made:
        _made.append(tempfile.TemporaryDirectory(prefix="xpucached-fuzz-"))
    return Path(_made[0].name) / "store"


_AT: Final = datetime(2026, 5, 4, 12, tzinfo=UTC)


def slot(data: bytes) -> None:
    """Look at a store whose files hold these bytes: an entry, its lock, its time, the size."""
    source, binary, accessed, lock, size = (*data.split(b"\xfe\xff"), b"", b"", b"", b"", b"")[:5]
    read = entry_format.source(source, len(source))
    root = _root()
    shutil.rmtree(root, ignore_errors=True)
    leaf = root.joinpath(*read.directories) if read.whole else root / "1/2/3/4"
    code = root / entry_format.RTC / ("A" * 43 + "=")
    for place, name in ((leaf, "0"), (code, entry_format.IR)):
        place.mkdir(parents=True)
        (place / f"{name}.bin").write_bytes(binary)
        (place / f"{name}_access_time.txt").write_bytes(accessed)
    (leaf / "0.src").write_bytes(source)
    if lock:
        (leaf / "0.lock").write_bytes(lock)
    (root / "cache_size.txt").write_bytes(size)
    scan = sycl.scanner.scan(FoundStore(Store(sycl.NAME, root), StoreOrigin.FOUND, "fuzz"), _AT, {}, None)
    _check((scan.state, len(scan.entries)) == (StoreState.OK, 2), "an entry is lost")
    _check(
        (sycl.defects.SIZE_GARBAGE in scan.faults) == (not size[:32].isdigit() or int(size[:32]) >= 1 << 64), "a size"
    )
    for entry in scan.entries:
        _check(entry.created <= _AT, "made after it was seen")
        _check(sum(len(kernel.name) for kernel in entry.kernels) <= 4 << 20, "names without bounds")
        of = entry.environment
        _check(of is None or len(sycl.targets.identity(of)) <= 4 * 4096, "an endless device")
        _check(lock or entry.state is not EntryState.UNFINISHED, "unfinished without a lock")


def configuration(data: bytes) -> None:
    """Read a runtime's configuration file."""
    file = _root().with_name("sycl.conf")
    file.write_bytes(data)
    place = sycl.discovery.locate(
        Process(7, 0, _AT, "app", Path("/work"), {"SYCL_CONFIG_FILE_NAME": str(file), "HOME": "/h"})
    )
    _check(place is None or (place[0].is_absolute() and len(str(place[0])) < 1000), "a place that is none")


def our_settings(data: bytes) -> None:
    """Read our own configuration, or a model file, with one beside it that is whole: neither hides it."""
    place = _root().with_name("settings")
    (place / "models.d").mkdir(parents=True, exist_ok=True)
    if data[:1] <= b"\x7f":
        file = place / "xpucached.toml"
        file.write_bytes(data[1:])
        with suppress(SettingsError):
            loading.load(file, user=True, environ={"HOME": str(place), "XDG_RUNTIME_DIR": str(place)})
        return
    (place / "models.d" / "whole.toml").write_text("command = ['/bin/true']\n")
    (place / "models.d" / "any.toml").write_bytes(data[1:])
    found, problems = model_files.models(place / "models.d")
    _check(any(one.source.endswith("/whole.toml") for one in found) or problems, "the other model is hidden")
    _check(sum(len(one.message) for one in problems) < 1 << 20, "words without bounds")


def library(data: bytes) -> None:
    """Look for the build id of a driver's library, and for where one has others looked for."""
    descriptor = os.memfd_create("fuzz")
    try:
        os.write(descriptor, data)
        path = Path(f"/proc/self/fd/{descriptor}")
        found, places = elf.build_id(path), elf.run_paths(path)
    finally:
        os.close(descriptor)
    _check(found is None or (len(found) <= 128 and bytes.fromhex(found)), "no build id")
    _check(len(places) <= 32 and all(one.startswith("/") for one in places), "no directories")


# -- what lies in our own state directory ----------------------------------------------------------------------------

_NOW: Final = datetime(2026, 5, 4, 12, tzinfo=UTC)
_MODELS: Final = (
    Model(ModelName("net"), Workload(("/usr/bin/python3", "app.py"), Path("/opt/app"), {"A": "b"}, 60.5), None, 70),
    Model(
        ModelName("loaded"),
        Workload((), Path("/opt"), {}, 9.0, RunSpec(loader=Loader.PYTHON, python="/p", target="a:b", device="xpu")),
        None,
        50,
    ),
)
_sound: Final[list[bytes]] = []


def _catalog() -> bytes:
    """Return a catalog with two models in it."""
    if not _sound:
        with tempfile.TemporaryDirectory(prefix="xpucached-fuzz-") as made:
            path = Path(made, "catalog.sqlite")
            with closing(Catalog.open(path)) as opened:
                for model in _MODELS:
                    opened.write(add_model, model)
            _sound.append(path.read_bytes())
    return _sound[0]


def catalog(data: bytes) -> None:
    """Start with a damaged catalog: by the first byte it is these bytes, or a sound one that they change or follow.

    What changes one is a row of places (three bytes each) and bytes; a journal beside it is another way to damage it.
    """
    way, data = (data[0] % 4, data[1:]) if data else (0, data)
    sound, journal = _catalog(), b""
    if way == 0:
        content = data
    elif way == 1:
        changed = bytearray(sound)
        for at in range(0, len(data) - 3, 4):
            changed[int.from_bytes(data[at : at + 3], "big") % len(changed)] = data[at + 3]
        content = bytes(changed)
    elif way == 2:
        content = sound[: int.from_bytes(data[:3], "big") % (len(sound) + 1)] + data[3:]
    else:
        content, journal = sound, data
    with tempfile.TemporaryDirectory(prefix="xpucached-fuzz-") as made:
        path = Path(made, "catalog.sqlite")
        path.write_bytes(content)
        if journal:
            path.with_name(f"{path.name}-wal").write_bytes(journal)
        try:
            opened = Catalog.open(path)
        except CatalogError as error:
            # The one reason not to start: a newer version wrote it.
            _check("newer" in error.message, f"a catalog that stops a start: {error.message}")
            return
        with closing(opened):
            _check(opened.rebuilt is None or list(path.parent.glob("*.corrupt-*")), "it is set aside nowhere")
            try:
                _use(opened)
            except CatalogError:
                # What only shows at work: the next look sets it aside.
                _check(opened.mend(), "what failed at work is not mended")
                _use(opened)


def _use(opened: Catalog) -> None:
    opened.read(last_survey)
    opened.read(newest_runs)
    opened.read(all_stores)
    opened.read(model_coverage)
    opened.read(target_presence)
    opened.read(all_entries)
    opened.read(open_intents)
    opened.write(close_lost_runs, _NOW)
    digests = {one.workload.digest for one in _MODELS}
    for model in opened.read(all_models):
        _check(model.workload.digest in digests, "a command that nobody registered")


# -- what clients send ------------------------------------------------------------------------------------------------


def message(data: bytes) -> None:
    """Read a message; the first byte says how large and how deep it may be, and whether it may have bytes as text."""
    bounds = data[0] if data else 0
    data = data[1:]
    largest, depth, most = (64, 16384)[bounds & 1], (2, messages.DEPTH)[bounds >> 1 & 1], (None, 8)[bounds >> 2 & 1]
    escaped = bool(bounds & 8)
    try:
        read = messages.parse(data, largest=largest, depth=depth, most=most, escaped_bytes=escaped)
    except messages.BadMessage as error:
        _check(len(str(error)) < 300, "a refusal without bounds")
        return
    _check(len(data) <= largest, "more was read than may be")
    _check(_deep(read) <= depth, "it is deeper than may be")
    _check(most is None or _values(read) <= most, "it has more values than may be")
    _check(json.loads(data) == read, "something else was read than stands there")
    text = json.dumps(read, allow_nan=False)
    if not escaped:
        text.encode("utf-8")
        json.dumps(read, ensure_ascii=False).encode("utf-8")
    with suppress(messages.BadMessage):
        members = messages.members(read)
        for key in members:
            _check_member(members, key)


def _check_member(members: Mapping[str, messages.Json], key: str) -> None:
    with suppress(messages.BadMessage):
        _check(0 <= messages.whole(members, key, least=0, most=9) <= 9, "another number was taken")
    with suppress(messages.BadMessage):
        _check(0 <= messages.number(members, key, least=0, most=9) <= 9, "another number was taken")
    with suppress(messages.BadMessage):
        _check(len(messages.text(members, key, longest=9)) <= 9, "a longer text was taken")
    with suppress(messages.BadMessage):
        _check(len(messages.items(members, key, most=2)) <= 2, "more items were taken")
    with suppress(messages.BadMessage):
        _check(isinstance(messages.flag(members, key), bool), "what is no flag was taken")


def _deep(value: object) -> int:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return 1 + max(map(_deep, inner), default=0) if isinstance(value, (dict, list)) else 0


def _values(value: object) -> int:
    """Count what holds nothing else."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return sum(map(_values, inner)) if inner else 1


def request(data: bytes) -> None:
    """Check a request: its row by the first byte, then a body or a query string."""
    row = requests.ENDPOINTS[data[0] % len(requests.ENDPOINTS)] if data else requests.ENDPOINTS[0]
    places = dict.fromkeys(row.placeholders, data[1:9].decode("latin-1"))
    query, body = ("", data[1:]) if row.method == "POST" else (data[9:].decode("latin-1"), b"")
    try:
        asked = intake.read(row, places, query, body)
    except RequestError as error:
        _check(len(error.message) < 4000, "a refusal without bounds")
    else:
        _check(isinstance(asked, row.request), "another request was read")


class _Ends(asyncio.Transport):
    """The far end of a connection: takes what the server writes."""

    def __init__(self, end: socket.socket) -> None:
        super().__init__({"socket": end, "sockname": "", "peername": ""})
        self.written = bytearray()
        self.closed = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += data

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed

    def get_write_buffer_size(self) -> int:
        """Return 0: this client reads all at once."""
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Have no buffer."""

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """Stay with the one."""

    def pause_reading(self) -> None:
        """Go on."""

    def resume_reading(self) -> None:
        """Go on."""


_ANSWER: Final = re.compile(rb"HTTP/1\.1 (\d{3}) ")
_KNOWN: Final = {b"200", b"201", b"202", b"400", b"403", b"404", b"405", b"408", b"409", b"411", b"413", b"503"}
_MOST_TURNS: Final = 400


class _Door:
    """The server's whole way from bytes to bytes, without a socket."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.trouble: list[Mapping[str, object]] = []
        self.loop.set_exception_handler(lambda _, context: self.trouble.append(context))
        self.end, self.other = socket.socketpair()

    async def _speak(self, pieces: list[bytes]) -> bytes:
        limits = ConnectionLimits(head=4096, body=65536, head_time=5, body_time=0.02, idle_time=5, heartbeat=5)
        routes = Routes(handlers(Standin()), owner_only, limits)
        config = http_configuration(routes.application, limits)
        places = ConnectionPool(limits)
        transport = _Ends(self.end)
        connection = Connection(config, places, {}, _loop=self.loop)
        connection.connection_made(transport)
        for piece in pieces:
            if transport.closed:
                break
            connection.data_received(piece)
            for _ in range(_MOST_TURNS):
                if not connection.busy or transport.closed:
                    break
                await asyncio.sleep(0 if not places.tasks else 0.0005)
        routes.stop()
        connection.connection_lost(None)
        if places.tasks:
            _, late = await asyncio.wait(places.tasks, timeout=5)
            _check(not late, "a request that never ends")
        _check(not places.held and not places.idle, "a place that is not given back")
        return bytes(transport.written)

    def speak(self, pieces: list[bytes]) -> bytes:
        """Send pieces; give what is answered."""
        said = self.loop.run_until_complete(self._speak(pieces))
        trouble, self.trouble = self.trouble, []
        _check(not trouble, f"an error that nobody took: {trouble}")
        return said

    def close(self) -> None:
        """End its threads."""
        self.loop.run_until_complete(self.loop.shutdown_default_executor())
        self.loop.close()
        self.end.close()
        self.other.close()


_door: Final[list[_Door]] = []


def close() -> None:
    """End what targets keep between two calls."""
    while _made:
        _made.pop().cleanup()
    while _door:
        _door.pop().close()


def http(data: bytes) -> None:
    """Talk to the server; a byte that no request needs divides the pieces in which it comes."""
    if not _door:
        _door.append(_Door())
    said = _door[0].speak([piece for piece in data.split(b"\xff") if piece])
    if said:
        _check(_ANSWER.match(said), "what is answered is no HTTP")
        statuses = set(_ANSWER.findall(said))
        _check(statuses <= _KNOWN, f"an answer with status {statuses}")


TARGETS: Final[Mapping[str, Callable[[bytes], None]]] = {
    one.__name__: one
    for one in (
        source,
        binary,
        image,
        name,
        trace,
        zebin_entry,
        lookup,
        slot,
        configuration,
        our_settings,
        label,
        library,
        catalog,
        message,
        request,
        http,
        device_code,
        program,
        wheel,
        bundle,
    )
}
"""Every target by its name."""


def _places() -> list[int]:
    """Return where a sound catalog says what is worth changing: its schema, its revision, its models."""
    words = (b"CREATE TABLE models", b"alembic_version", b"app.py", b"loaded", b"python3")
    return [at for word in words if (at := _catalog().rfind(word)) > 0]


# -- where it begins --------------------------------------------------------------------------------------------------


def _zipped(method: int) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", method) as archive:
        for name in ("a.so", "b.so"):
            archive.writestr(name, b"\x7fELF" + name.encode() * 99)
    return made.getvalue()


def _head(line: str, *fields: str, body: bytes = b"") -> bytes:
    return "\r\n".join((f"{line} HTTP/1.1", "Host: localhost", *fields, "", "")).encode() + body


def _bundles() -> list[bytes]:
    """Return each part of a good bundle as it is."""
    parts: dict[str, bytes] = {}

    def noted(shape: str) -> Callable[[bytes], bytes]:
        def note(content: bytes) -> bytes:
            parts[shape] = content
            return content

        return note

    whole = tar(bundles.layout({shape: noted(shape) for shape in _SHAPES[:-1]}))
    return [bytes([number]) + parts.get(shape, whole) for number, shape in enumerate(_SHAPES)]


def seeds(target: str) -> list[bytes]:
    """Return what a target begins with: what real runtimes and clients write."""
    real = {suffix: [path.read_bytes() for path in sorted(CORPUS.glob(f"*.{suffix}"))] for suffix in ("src", "bin")}
    sources = [*real["src"], framed(b"P/D/v/d", b"-O2", b"\1\0", spirv("_ZTS1k")), framed(b"", b"", b"", b"")]
    programs = [*real["bin"], struct.pack("<Q", 1) + framed(native(300, (b".text._ZTS1k", b"x")))]
    programs.append(struct.pack("<Q", 2) + framed(b"BC\xc0\xde", b"!<arch>\n" + b" " * 60))
    bodies = [
        {"name": "m", "command": ["/bin/true"], "directory": "/", "variables": {"A": "b"}, "timeout": 60.0},
        {"refs": ["0123456789ab"], "reasons": ["defective"], "dry_run": True},
        {"models": ["m"], "force": True},
        {"stores": ["/s"], "full": True},
    ]
    texts = [json.dumps(body).encode() for body in bodies]
    rows = enumerate(requests.ENDPOINTS)
    lines = [_head(f"{row.method} {row.path.format(name='resnet', ref='0', id='1')}") for row in requests.ENDPOINTS]
    posts = [
        _head("POST /v1/models", f"Content-Length: {len(text)}", "Content-Type: application/json", body=text)
        for text in texts
    ]
    chunked = _head("POST /v1/scan", "Transfer-Encoding: chunked", body=b"2\r\n{}\r\n0\r\n\r\n")
    root = "/s/libsycl_cache/1/2/3/4/0"
    lines_of_trace = (
        f"[Persistent Cache]: device binary has been cached: {root}.bin",
        f"*** Code caching: using cached device binary: {root}.bin",
        f"[Persistent Cache]: using cached device binary: {root}.bin;{root}.bin;",
        "[Persistent Cache]: storing device code IR: /s/libsycl_cache/ext_kernel_compiler/" + "A" * 43 + "=/ir.bin",
    )
    return {
        "source": [b"\0" + one for one in sources] + [b"\5" + one for one in sources[:1]],
        "binary": programs,
        "image": [one[16:] for one in programs] + [spirv("_ZTS1k", "_ZTS1l")],
        "name": [
            b"TSN5dpctl6tensor7kernelsI3fooIfLb1EEEE",
            b"1f1PI1AS0_ES_IS1_S1_E",
            b"TSZZ4mainENKUlRN4sycl7handlerEE_clES1_EUlvE0_",
        ],
        "zebin_entry": [path.read_bytes() for path in sorted(DRIVERS.rglob("*_cache"))]
        + [(DRIVERS / "recorded" / one).read_bytes() for one in ("config.file", "stats")],
        "lookup": [path.read_bytes() for path in sorted(DRIVERS.rglob("*.trace"))],
        "trace": [line.encode() for line in lines_of_trace] + ["\n".join(lines_of_trace).encode()],
        "label": [
            json.dumps(
                {
                    "key": key,
                    "at": "2026-05-04T12:00:00+00:00",
                    "reason": "unused",
                    "detail": "",
                    "quarantined": False,
                    "device": "d",
                    "driver": "1",
                    "mode": 0o755,
                    "files": {".src": [5, 1], ".bin": [7, 2]},
                }
            ).encode()
            for key in ("1/2/3/4/0", "ext_kernel_compiler/1/2/3/0", "ext_kernel_compiler/" + "A" * 43 + "=/ir")
        ],
        "slot": [
            b"\xfe\xff".join((source, program, b"1700000000000000000", lock, b"12345"))
            for source, program in zip(sources[-3:], programs[-3:], strict=True)
            for lock in (b"", b"xpucached 7-8-9-" + b"a" * 32, f"xpucached {makers.ourselves()}\n".encode())
        ],
        "configuration": [
            b"SYCL_CACHE_PERSISTENT=1\nSYCL_CACHE_DIR=/from/file\n",
            b"# SYCL_CACHE_DIR=/a\nSYCL_CACHE_DIR=rel\n",
            b"SYCL_CACHE_PERSISTENT=1",
        ],
        "device_code": [data for name, data in sorted(archives().items()) if name[0] in "01"] + [spirv("k")],
        "program": [
            linked(("spir64", spirv("a", "b"), ("a", "b")), ("spir64_gen", b"!<arch>\n", ("b",)), **shape)
            for shape in ({}, {"version": 2}, {"newer": True, "relocated": False})
        ],
        "wheel": [_zipped(method) for method in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_LZMA)],
        "bundle": _bundles(),
        "our_settings": [
            b"\0[stores]\npaths = ['/s', 'sycl:/t']\n[driver]\nvariables = { A = 'b' }\nprobe_timeout = '5s'\n",
            b"\0[policy]\nmax_bytes = '1GiB'\ngrace = '1h'\n[policy.stores.'/s']\nmax_unused = 'unlimited'\n",
            b"\0[throttle]\nwindow = '22:00-06:00'\n[schedule]\nscrub = 0x1fff\n[workers]\ninclude = ['root', '0']\n",
            b"\x80command = ['/bin/true', 'x']\ntimeout = '5m'\nstore = '/s'\npriority = 3\nvariables = { A = 'b' }\n",
            (
                b"\x80name = 'm'\nloader = 'python'\npython = '/usr/bin/python3'\ntarget = 'a:b'\n"
                b"device = 'cpu'\noptions = { c = '1' }\n"
            ),
        ],
        "library": [one[16:] for one in programs] + [native(300)],
        "catalog": [
            b"\0",
            b"\0" + _catalog()[:16000],
            b"\1" + bytes((0, 0, 18, 2)),
            *(b"\1" + at.to_bytes(3, "big") + b"\xff" for at in _places()),
            b"\2" + (8192).to_bytes(3, "big"),
            b"\3" + bytes.fromhex("377f0682002de218") + bytes(64),
        ],
        "message": [
            *(b"\3" + text for text in texts),
            b"\x07" + b"[1,2,3]",
            b"\x0b" + b'{"a": "\\udcff"}',
            b'\x03{"a": {"b": [[[1e9, -0, true, null]]]}, "c": "\\u00e9"}',
        ],
        "request": [bytes([number]) + text for number, row in rows if row.method == "POST" for text in texts]
        + [bytes([4]) + b"12345678driver=current&limit=5&unused=3.5", bytes([19]) + b"        since=1&follow=true"],
        "http": [
            *lines,
            *posts,
            chunked,
            b"\xff".join(posts[:2]),
            lines[0] + lines[1],
            b"GET /v1/st\xffatus HTTP/1.1\r\n\r\n",
        ],
    }[target]
