"""A layout is made beside where it shall be, and put there as a whole."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import shutil
import tempfile
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

from xpucached.bundle import archive, words
from xpucached.bundle.layout import Descriptor, canonical, digest_of
from xpucached.bundle.packing import compressor
from xpucached.errors import AlreadyThere, DiskError, RequestError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from concurrent.futures import Future

    from xpucached.domain.bundles import Compression

_PIECE: Final = 1 << 20
_WAITING: Final = 4
"""Pieces that wait for being packed, in memory."""
FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NO_LINKS: Final = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS}
"""Of file systems without hard links, as memory sticks have."""
_OURS: Final = "xpucached."
"""What all begins with in a directory in which a layout is made."""


class LayoutWriter:
    """Makes a layout beside where it shall be, and puts it there as a whole: who is killed leaves what was there."""

    def __init__(self, dest: Path) -> None:
        """Begin a folder, or a tar file where the name ends so.  Raises `AlreadyThere` and `DiskError`."""
        self._dest = dest
        if os.path.lexists(dest):
            raise _there(dest)
        with _told(dest):
            _sweep(dest)
            self._beside, self._held = _made(dest)
            self._inside = inside(self._beside, self._held)
            self._place = self._inside / f"{_OURS}layout"
            (self._place / "blobs/sha256").mkdir(parents=True)
        self.put_file("oci-layout", canonical({"imageLayoutVersion": "1.0.0"}))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.discard()

    @property
    def scratch(self) -> Path:
        """A directory for what is needed meanwhile; nothing of it is in the layout."""
        place = self._inside / f"{_OURS}scratch"
        place.mkdir(exist_ok=True)
        return place

    def put_file(self, name: str, data: bytes) -> None:
        """Write one of the layout's own files."""
        with _told(self._dest):
            (self._place / name).write_bytes(data)

    def put(
        self,
        data: bytes,
        media_type: str,
        artifact_type: str = "",
        annotations: Mapping[str, str] | None = None,
        *,
        platform: bool = False,
    ) -> Descriptor:
        """Write a small blob."""
        digest = digest_of(data)
        self.put_file(f"blobs/sha256/{digest[7:]}", data)
        return Descriptor(media_type, digest, len(data), artifact_type, annotations or {}, platform)

    def take(self, path: Path, name: str) -> None:
        """Take a file that lies beside as one of the layout's own."""
        with _told(self._dest):
            path.chmod(0o666 & ~_umask())
            try:
                os.link(path, self._place / name)
            except OSError:
                shutil.copy(path, self._place / name)

    def layer(self, how: Compression, media_type: str) -> LayerWriter:
        """Begin a layer."""
        return LayerWriter(self._place, how, f"{media_type}+{how}")

    def finish(self) -> None:
        """Put the layout in its place.  Raises `AlreadyThere` and `DiskError`."""
        with _told(self._dest):
            if self._dest.suffix == ".tar":
                self._finish_tar()
            else:
                for folder, _, names in os.walk(self._place, topdown=False):
                    for name in names:
                        _sync(Path(folder, name))
                    _sync(Path(folder))
                if os.path.lexists(self._dest):
                    raise _there(self._dest)
                self._place.rename(self._dest)
            _sync(self._dest.parent)
            self.discard()

    def _finish_tar(self) -> None:
        beside = self._inside / f"{_OURS}tar"
        names = sorted(
            os.path.relpath(Path(folder, name), self._place)
            for folder, _, names in os.walk(self._place)
            for name in names
        )
        with beside.open("xb") as file:
            tar = archive.ArchiveWriter(file.write)
            for name in names:
                path = self._place / name
                size = path.stat().st_size
                tar.begin(name, size)
                with path.open("rb") as source:
                    while piece := source.read(_PIECE):
                        tar.more(piece)
                tar.end(size)
            tar.finish()
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(beside, self._dest)
        except FileExistsError:
            raise _there(self._dest) from None
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            if os.path.lexists(self._dest):
                raise _there(self._dest) from None
            beside.rename(self._dest)

    def discard(self) -> None:
        """Take away what was not finished."""
        if self._held >= 0:
            remove(self._beside, self._held)
            os.close(self._held)
            self._held = -1


class LayerWriter:
    """Writes one layer: an archive, compressed as it comes."""

    def __init__(self, root: Path, how: Compression, media_type: str) -> None:
        self._root = root
        self._media_type = media_type
        descriptor_, self._path = tempfile.mkstemp(dir=root)
        self._file = os.fdopen(descriptor_, "wb")
        self._packed, self._plain = hashlib.sha256(), hashlib.sha256()
        self._compressor = compressor(how)
        self._archive = archive.ArchiveWriter(self._take)
        self._pool = ThreadPoolExecutor(1)
        self._piece: list[bytes] = []
        self._held = 0
        self._packing: deque[Future[None]] = deque()
        self._size = 0
        self.count = 0  #: files
        self.bytes = 0  #: in the files

    def add(self, name: str, content: bytes) -> None:
        """Add a file; in ascending order of the names."""
        self._archive.add(name, content)
        if self._archive.count > words.MOST_FILES or len(content) > words.LARGEST_FILE:
            self._refuse(f"a layer with more than {words.MOST_FILES} files, or one of {len(content)} bytes")
        self.count += 1
        self.bytes += len(content)

    def finish(self) -> tuple[Descriptor, str]:
        """Return the layer, and the digest of what it is uncompressed.  Raises `RequestError`."""
        self._archive.finish()
        self._hand_over()
        while self._packing:
            self._packing.popleft().result()
        self._pool.shutdown()
        self._out(self._compressor.flush())
        self._file.close()
        if self._size > words.LARGEST_BLOB or self._archive.size > words.most_unpacked(self._size):
            self._refuse(f"a layer of {self._archive.size} bytes, packed {self._size}")
        digest = f"sha256:{self._packed.hexdigest()}"
        Path(self._path).chmod(0o666 & ~_umask())
        Path(self._path).rename(self._root / "blobs/sha256" / digest[7:])
        return Descriptor(self._media_type, digest, self._size), f"sha256:{self._plain.hexdigest()}"

    def discard(self) -> None:
        """Leave nothing of it."""
        self._pool.shutdown(cancel_futures=True)
        self._file.close()
        Path(self._path).unlink(missing_ok=True)

    def _refuse(self, what: str) -> None:
        """Leave nothing of it: who reads bundles takes no such layer."""
        self.discard()
        raise RequestError(f"nobody would read {what}", hint="make several: --model, --driver, --device")

    def _take(self, data: bytes) -> None:
        self._piece.append(data)
        self._held += len(data)
        if self._held >= _PIECE:
            self._hand_over()

    def _hand_over(self) -> None:
        """Have what came packed beside, while the next is read."""
        if len(self._packing) >= _WAITING:
            self._packing.popleft().result()
        self._packing.append(self._pool.submit(self._pack, b"".join(self._piece)))
        self._piece, self._held = [], 0

    def _pack(self, data: bytes) -> None:
        self._plain.update(data)
        self._out(self._compressor.compress(data))

    def _out(self, data: bytes) -> None:
        self._packed.update(data)
        self._size += len(data)
        self._file.write(data)


def _there(dest: Path) -> AlreadyThere:
    return AlreadyThere(f"{dest} is there already", hint="remove it first, or name another place")


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def _prefix(dest: Path) -> str:
    return f".{dest.name}.partial-"


def _made(dest: Path) -> tuple[Path, int]:
    """Make the directory, and hold it while one of us works there; give what is open of it.  Raises OSError."""
    while True:
        place = Path(tempfile.mkdtemp(prefix=_prefix(dest), dir=dest.parent))
        # Until it is held, somebody may take it for left behind.
        with contextlib.suppress(FileNotFoundError):
            held = os.open(place, FOLDER)
            try:
                ours = hold(held) is not False and os.path.lexists(place)
                if ours and not _is_new(held):
                    why = "something else took the place of what is made beside it"
                    raise OSError(errno.EEXIST, why)  # noqa: TRY301 - it is closed below
            except OSError:
                os.close(held)
                raise
            if ours:
                return place, held
            os.close(held)


def _is_new(held: int) -> bool:
    """Return whether a directory is empty, and whose what is made in it is: by any file system's word of owners."""
    if os.listdir(held):
        return False
    file = os.open(f"{_OURS}new", os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=held)
    try:
        return os.fstat(file).st_uid == os.fstat(held).st_uid
    finally:
        os.close(file)


def inside(place: Path, held: int) -> Path:
    """Return the path of a directory that is open, by which it is found whoever renames it; its own without /proc."""
    opened = Path(f"/proc/self/fd/{held}")
    return opened if opened.exists() else place


def hold(descriptor: int) -> bool | None:
    """Hold what is open until it is closed; False if somebody does, None if nobody can, as on some file systems."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


def remove_left(path: Path, of: str = "") -> None:
    """Remove a directory of ours that nobody holds, in whatever container: who made it was killed.

    All that is in it must begin with ``of``: whoever may write there may have given its name to another one of ours.
    """
    with contextlib.suppress(OSError):
        folder = os.open(path, FOLDER)
        try:
            ours = os.fstat(folder).st_uid == os.geteuid() and hold(folder)
            if ours and all(name.startswith(of) for name in os.listdir(folder)):
                remove(path, folder)
        finally:
            os.close(folder)


def _sweep(dest: Path) -> None:
    """Remove what killed ones of us left beside."""
    for path in dest.parent.iterdir():
        if path.name.startswith(_prefix(dest)):
            remove_left(path, _OURS)


def remove(place: Path, held: int) -> None:
    """Remove a directory that is open; of what has its name by now only an empty one goes."""
    with contextlib.suppress(OSError):
        for name in os.listdir(held):
            with contextlib.suppress(OSError):
                os.unlink(name, dir_fd=held)
            shutil.rmtree(name, ignore_errors=True, dir_fd=held)
        place.rmdir()


def _sync(path: Path) -> None:
    file_descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(file_descriptor)
    finally:
        os.close(file_descriptor)


@contextlib.contextmanager
def _told(dest: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise DiskError(f"{dest} cannot be written: {error.strerror or error}") from error
