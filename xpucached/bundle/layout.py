"""An OCI image layout in a folder or in a tar file, read as somebody else's."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import re
import stat
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import IO, TYPE_CHECKING, BinaryIO, Final, Self, cast

from msgspec import Struct, field

from xpucached import messages, reading, state_files
from xpucached.bundle import archive, words
from xpucached.errors import BadBundle, DiskError, NotFound
from xpucached.printing import quoted

if TYPE_CHECKING:
    from collections.abc import Iterator

    from xpucached.messages import Json

_DIGEST: Final = re.compile(r"sha256:([0-9a-f]{64})\Z")
_BLOB: Final = re.compile(r"blobs/sha256/[0-9a-f]{64}\Z")
_PIECE: Final = 1 << 20
_READ: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_NO_FILE: Final = {errno.EISDIR, errno.ELOOP, errno.ENOTDIR, errno.ENXIO}
"""Errors that say what lies there; all others may pass, or are of who reads."""


class Descriptor(Struct, frozen=True):
    """What names a blob: its type, digest and size."""

    media_type: str
    digest: str
    size: int
    artifact_type: str = ""
    annotations: Mapping[str, str] = field(default_factory=dict)
    platform: bool = False  #: written with the platform of an image

    def json(self) -> dict[str, Json]:
        """Return it as it stands in a manifest."""
        made: dict[str, Json] = {"mediaType": self.media_type, "digest": self.digest, "size": self.size}
        if self.artifact_type:
            made["artifactType"] = self.artifact_type
        if self.annotations:
            made["annotations"] = dict(self.annotations)
        if self.platform:
            made["platform"] = {"architecture": "amd64", "os": "linux"}
        return made


def canonical(value: Json) -> bytes:
    """Write JSON in the one way in which it is written here."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode()


def digest_of(data: bytes) -> str:
    """Return the digest by which a blob is named."""
    return "sha256:" + hashlib.sha256(data).hexdigest()


def parsed(data: bytes) -> dict[str, Json]:
    """Read an object of JSON that somebody else wrote.  Raises `BadBundle`."""
    try:
        return messages.members(messages.parse(data, largest=words.LARGEST_JSON, most=100_000))
    except messages.BadMessage as error:
        raise BadBundle(f"a manifest of the bundle cannot be read: {error}") from None


def descriptor(value: Json) -> Descriptor:
    """Read a descriptor that somebody else wrote.  Raises `BadBundle`."""
    try:
        told = messages.members(value)
        digest, size = messages.text(told, "digest", longest=80), told.get("size")
        notes = messages.members(told.get("annotations") or {})
        artifact = told.get("artifactType") or ""
        media = messages.text(told, "mediaType", longest=200)
    except messages.BadMessage as error:
        raise BadBundle(f"a manifest of the bundle names a blob wrongly: {error}") from None
    if _DIGEST.match(digest) is None or isinstance(size, bool) or not isinstance(size, int) or size < 0:
        raise BadBundle(f"a manifest names a blob wrongly: {digest[:80]!r}, {size!r} bytes")
    texts = {name: text for name, text in notes.items() if isinstance(text, str)}
    return Descriptor(media, digest, size, artifact if isinstance(artifact, str) else "", texts)


class LayoutReader:
    """A layout that somebody else wrote; `close` it.  What it gives was compared with its digest, and is a copy."""

    def __init__(self, path: Path) -> None:
        """Open a folder or a tar file.  Raises `NotFound`, `BadBundle` and `DiskError`, as whatever reads it does."""
        self.path = path
        self._places: dict[str, tuple[int, int]] | None = None
        try:
            # What a person names may be a link; nothing below it is.
            self._root = reading.opened(path)
        except OSError as error:
            raise NotFound(f"{path}: {error.strerror}", hint="name a folder or a tar file with a bundle") from error
        try:
            self._begin()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _begin(self) -> None:
        kind = os.fstat(self._root).st_mode
        if stat.S_ISREG(kind):
            with self._file() as file:
                size = os.fstat(self._root).st_size
                self._places = archive.places(file, _is_file, _is_folder, size)
        elif not stat.S_ISDIR(kind):
            raise BadBundle(f"{self.path} is neither a folder nor a file")
        version = parsed(self._read("oci-layout", 4096)).get("imageLayoutVersion")
        if not isinstance(version, str) or version.partition(".")[0] != "1":
            raise BadBundle(f"{self.path} is a layout of another version")

    def close(self) -> None:
        """Close it."""
        if self._root >= 0:
            os.close(self._root)
            self._root = -1

    def top(self) -> dict[str, Json]:
        """Return what lists the layout's own members: that file alone has no digest."""
        return parsed(self._read("index.json", words.LARGEST_JSON))

    def json(self, of: Descriptor) -> bytes:
        """Return a small blob.  Raises `BadBundle` if it is not what its digest says."""
        if of.size > words.LARGEST_JSON:
            raise BadBundle(f"a manifest of the bundle has {of.size} bytes")
        data = self._read(f"blobs/sha256/{of.digest[7:]}", of.size)
        if len(data) != of.size or digest_of(data) != of.digest:
            raise BadBundle(f"a blob is not what its digest says: {of.digest}")
        return data

    @contextlib.contextmanager
    def blob(self, of: Descriptor) -> Iterator[BinaryIO]:
        """Return a copy of a blob that nobody else can change.  Raises `BadBundle` if its digest is another."""
        if of.size > words.LARGEST_BLOB:
            raise BadBundle(f"a layer of the bundle has {of.size} bytes")
        with tempfile.TemporaryFile() as copy, self._opened(f"blobs/sha256/{of.digest[7:]}") as (file, size):
            found, left = hashlib.sha256(), of.size
            while size == of.size and left and (piece := file.read(min(left, _PIECE))):
                found.update(piece)
                copy.write(piece)
                left -= len(piece)
            if size != of.size or left or f"sha256:{found.hexdigest()}" != of.digest:
                raise BadBundle(f"a blob is not what its digest says: {of.digest}")
            copy.seek(0)
            yield cast("BinaryIO", copy)

    def _read(self, name: str, most: int) -> bytes:
        with self._opened(name) as (file, size):
            if size > most:
                raise BadBundle(f"{name} has {size} bytes, more than the {most} that it may have")
            return file.read(size)

    def _file(self) -> BinaryIO:
        return os.fdopen(self._root, "rb", closefd=False)

    @contextlib.contextmanager
    def _opened(self, name: str) -> Iterator[tuple[IO[bytes], int]]:
        """Open a file of the layout, at its beginning; give its size."""
        if self._places is not None:
            if name not in self._places:
                raise BadBundle(f"{self.path} is no bundle, or not whole: {name} is missing")
            at, size = self._places[name]
            with self._file() as file:
                file.seek(at)
                yield file, size
            return
        here = self._root
        with contextlib.ExitStack() as stack:
            try:
                for part in name.split("/")[:-1]:
                    here = os.open(part, _READ | os.O_DIRECTORY, dir_fd=here)
                    stack.callback(os.close, here)
                file = stack.enter_context(state_files.stream(os.open(name.rpartition("/")[2], _READ, dir_fd=here)))
            except OSError as error:
                if error.errno == errno.ENOENT:
                    raise BadBundle(f"{self.path} is no bundle, or not whole: {name} is missing") from error
                if error.errno in _NO_FILE:
                    raise BadBundle(f"{name} of the bundle cannot be read: {error.strerror}") from error
                hint = f"chmod -R a+rX {quoted(str(self.path))}" if error.errno == errno.EACCES else ""
                raise DiskError(f"{name} of {self.path} cannot be read: {error.strerror}", hint=hint) from error
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise BadBundle(f"{name} of the bundle is no file")
            yield file, status.st_size


def _is_file(name: str) -> bool:
    return name in {"oci-layout", "index.json"} or _BLOB.match(name) is not None


def _is_folder(name: str) -> bool:
    return name in {".", "blobs", "blobs/sha256"}
