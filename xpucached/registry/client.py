"""What is asked of a registry: blobs, manifests, and who refers to one.  All that comes is compared with its digest."""

from __future__ import annotations

import contextlib
import enum
import hashlib
import json
import random
import re
import time
from http import HTTPStatus
from typing import TYPE_CHECKING, BinaryIO, Final
from urllib.parse import quote, urlencode, urlsplit

from xpucached import messages
from xpucached.errors import BadBundle, NotFound, RegistryError
from xpucached.registry.part import PartialBlob, beside
from xpucached.registry.retrying import RETRIED, Interrupted, Retries
from xpucached.registry.transport import address, same_server

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path
    from urllib.parse import SplitResult

    from xpucached.messages import Json
    from xpucached.registry.login import Login
    from xpucached.registry.reference import Reference
    from xpucached.registry.transport import RegistryAnswer, Transport

_INDEX: Final = "application/vnd.oci.image.index.v1+json"
_MANIFEST: Final = "application/vnd.oci.image.manifest.v1+json"
_BYTES: Final = "application/octet-stream"
_LARGEST: Final = 4 << 20
"""Bytes of a manifest, and of a list of what refers to one."""
_COMPLAINT: Final = 2048
_REDIRECTS: Final = 5
_CHUNK: Final = 8 << 20
_PAGES: Final = 10
_MOST: Final = 1000
"""Manifests that refer to one, on one page: as many as are taken of it."""
_VALUES: Final = 100_000
"""Values on a page: a small one takes thirty times its bytes, and so many pages are held."""
_LIST_PAUSE: Final = (0.2, 0.6)  # seconds
_ROUNDS: Final = 8
"""So often it is looked whether a signature is still listed."""
_REDIRECTED: Final = frozenset({301, 302, 303, 307, 308})
_NO_LIST: Final = frozenset({HTTPStatus.BAD_REQUEST, HTTPStatus.NOT_FOUND, HTTPStatus.METHOD_NOT_ALLOWED})
"""How registries answer that do not know the request for what refers to a manifest."""
_RANGE: Final = re.compile(r"(?:bytes=)?0-([0-9]{1,15})", re.ASCII)
_NEXT: Final = re.compile(r"<([^<>]{1,1000})>\s*;\s*rel=\"?next\"?", re.ASCII)


class Delivery(enum.Enum):
    """How a blob came to be in a registry."""

    PRESENT = enum.auto()
    MOUNTED = enum.auto()  #: it was in another repository there
    SENT = enum.auto()


class Registry:
    """A repository of a registry."""

    def __init__(self, where: Reference, transport: Transport, login: Login) -> None:
        self.where = where
        self._transport = transport
        self._login = login
        self._base: SplitResult = login.base

    # -- requests -----------------------------------------------------------------------------------------------------

    def _url(self, rest: str) -> SplitResult:
        return urlsplit(f"{self._base.geturl()}/v2/{self.where.repository}/{rest}")

    def _once(
        self, method: str, url: SplitResult, headers: Mapping[str, str] | None = None, body: bytes | None = None
    ) -> RegistryAnswer:
        """Ask, log in if that is wanted, and go where a download is.  Raises `Interrupted` and others."""
        asked = False
        for _ in range(_REDIRECTS + 1):
            home = same_server(url, self._base)
            own = {**(headers or {}), **(self._login.headers if home else {})}
            answer = self._transport.ask(method, url, own, body)
            if answer.status == HTTPStatus.UNAUTHORIZED and home and not asked:
                asked = True
                with answer:
                    self._login.answer(answer.headers("WWW-Authenticate"))
                continue
            if answer.status in _REDIRECTED and method in {"GET", "HEAD"}:
                with answer:
                    url = address(answer.header("Location"), url)
                continue
            if answer.status in RETRIED:
                with answer:
                    why = f"{url.hostname} answered {answer.status}"
                    raise Interrupted(why, answer.header("Retry-After"))
            if answer.status in {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN}:
                with answer:
                    raise self._login.refused(_said(answer), url.hostname or "")
            return answer
        raise RegistryError(f"{self.where.host} sends from one address to the next without end")

    def _ask(
        self, method: str, url: SplitResult, headers: Mapping[str, str] | None = None, body: bytes | None = None
    ) -> RegistryAnswer:
        """Ask, again after a while where that may help.  Raises `RegistryError` and others."""
        tries = Retries()
        while True:
            try:
                return self._once(method, url, headers, body)
            except Interrupted as error:
                tries.failed(error)

    def _small(self, url: SplitResult, accept: str) -> tuple[RegistryAnswer, bytes]:
        """Get a small document, and give its body; nothing of what is not there."""
        tries = Retries()
        while True:
            try:
                with self._once("GET", url, {"Accept": accept}) as answer:
                    return answer, answer.body(_LARGEST) if answer.status == HTTPStatus.OK else b""
            except Interrupted as error:
                tries.failed(error)

    def _unexpected(self, answer: RegistryAnswer, what: str) -> RegistryError:
        return RegistryError(f"{self.where.host} answered {answer.status} to {what}{_said(answer)}")

    # -- reading ------------------------------------------------------------------------------------------------------

    def manifest(self, ref: str) -> bytes:
        """Get a manifest by its tag or digest.  Raises `NotFound`, `BadBundle` and others."""
        answer, data = self._small(self._url(f"manifests/{quote(ref, safe=':')}"), f"{_INDEX}, {_MANIFEST}")
        if answer.status == HTTPStatus.NOT_FOUND:
            raise NotFound(f"{self.where.host} has no {self.where.repository} {ref}", hint="see what its tags are")
        if answer.status != HTTPStatus.OK:
            raise self._unexpected(answer, "a question for a manifest")
        if ref.startswith("sha256:") and _digest(data) != ref:
            raise BadBundle(f"{self.where.host} gave a manifest that is not what its digest says: {ref}")
        return data

    def referrers(self, digest: str, artifact: str) -> list[Json]:
        """Return what refers to a manifest, as the registry lists it; by its API, or by the tag that stands for it."""
        found: list[Json] = []
        url = self._url(f"referrers/{digest}?{urlencode({'artifactType': artifact})}")
        for page in range(_PAGES):
            answer, data = self._small(url, _INDEX)
            if answer.status in _NO_LIST and not page:
                return self._listed_by_tag(digest)
            if answer.status != HTTPStatus.OK:
                raise self._unexpected(answer, "a question for signatures")
            found += _listed(data)
            more = _NEXT.search(answer.header("Link"))
            if more is None:
                break
            url = address(more[1], url)
            if not same_server(url, self._base):
                raise RegistryError(f"{self.where.host} sends to another host for a list: {url.hostname}")
        return found

    def _listed_by_tag(self, digest: str) -> list[Json]:
        answer, data = self._small(self._url(f"manifests/{_tag_of(digest)}"), _INDEX)
        if answer.status == HTTPStatus.NOT_FOUND:
            return []
        if answer.status != HTTPStatus.OK:
            raise self._unexpected(answer, "a question for signatures")
        return _listed(data)

    def fetch(self, digest: str, size: int, place: Path, tell: Callable[[int], None]) -> int:
        """Get a blob into a file, which has its name only when it is right; give how many bytes came now.

        What an earlier one of us got (``NAME.part``) is not asked for again.  Raises `BadBundle`, `NotFound` and
        others, and OSError.
        """
        with PartialBlob(beside(place), digest, size) as part:
            began = part.at
            tries = Retries()
            came = 0
            while part.at < size:
                before = part.at
                try:
                    self._go_on(part, tell)
                except Interrupted as error:
                    came += max(0, part.at - before)
                    tries.failed(error, part.at)
                    continue
                came += part.at - before
            if part.is_right():
                part.finish(place)
                return came
            part.restart()
            if not began:
                raise BadBundle(f"{self.where.host} gave a blob that is not what its digest says: {digest}")
        # What was there from before may have been spoilt.
        return self.fetch(digest, size, place, tell)

    def _go_on(self, part: PartialBlob, tell: Callable[[int], None]) -> None:
        headers = {"Range": f"bytes={part.at}-"} if part.at else {}
        with self._once("GET", self._url(f"blobs/{part.digest}"), headers) as answer:
            if answer.status == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
                part.restart()
                raise Interrupted(f"{self.where.host} does not go on with a blob")
            if answer.status == HTTPStatus.NOT_FOUND:
                raise NotFound(f"{self.where.host} lacks a part of {self.where.text}: {part.digest}")
            if answer.status not in {HTTPStatus.OK, HTTPStatus.PARTIAL_CONTENT}:
                raise self._unexpected(answer, "a question for a blob")
            if answer.header("Content-Encoding") not in {"", "identity"}:
                raise BadBundle(f"{self.where.host} gave a blob in another encoding than was asked for")
            if part.at and (
                answer.status != HTTPStatus.PARTIAL_CONTENT
                or not answer.header("Content-Range").startswith(f"bytes {part.at}-")
            ):
                part.restart()
                if answer.status == HTTPStatus.PARTIAL_CONTENT:
                    raise Interrupted(f"{self.where.host} gave another piece of a blob than was asked for")
            while piece := answer.piece():
                part.add(piece, self.where.host)
                tell(part.at)
        if part.at < part.size:
            raise Interrupted(f"{self.where.host} broke off after {part.at} of {part.size} bytes of a blob")

    # -- writing ------------------------------------------------------------------------------------------------------

    def has(self, digest: str) -> bool:
        """Return whether a blob is there."""
        with self._ask("HEAD", self._url(f"blobs/{digest}")) as answer:
            if answer.status not in {HTTPStatus.OK, HTTPStatus.NOT_FOUND}:
                raise self._unexpected(answer, "the question whether a blob is there")
            return answer.status == HTTPStatus.OK

    def send(
        self, digest: str, size: int, blob: BinaryIO, tell: Callable[[int], None], mount_from: str = ""
    ) -> Delivery:
        """Put a blob there: not if it is there, by a link where another repository has it, else in chunks."""
        if self.has(digest):
            return Delivery.PRESENT
        tries = Retries()
        url: SplitResult | None = None
        at = sent = 0
        while True:
            try:
                if url is None:
                    url, at = self._begin({"mount": digest, "from": mount_from} if mount_from else {}), 0
                    if url is None:
                        return Delivery.MOUNTED
                while size - at > _CHUNK:
                    blob.seek(at)
                    url, at = self._patch(url, blob.read(_CHUNK), at), at + _CHUNK
                    sent = max(sent, at)
                    tell(at)
                blob.seek(at)
                self._close(url, digest, blob.read(size - at))
            except Interrupted as error:
                tries.failed(error, sent)
                if self.has(digest):
                    return Delivery.SENT
                url, at = (None, 0) if url is None else self._left_at(url, min(sent + _CHUNK, size))
                mount_from = ""
                continue
            tell(size)
            return Delivery.SENT

    def _begin(self, query: Mapping[str, str]) -> SplitResult | None:
        """Begin an upload; None if the blob was mounted instead."""
        with self._ask("POST", self._url("blobs/uploads/" + (f"?{urlencode(query)}" if query else ""))) as answer:
            if query and answer.status == HTTPStatus.CREATED:
                return None
            if answer.status != HTTPStatus.ACCEPTED:
                raise self._unexpected(answer, "the beginning of an upload")
            return self._location(answer)

    def _location(self, answer: RegistryAnswer) -> SplitResult:
        url = address(answer.header("Location"), answer.url)
        if not same_server(url, self._base):
            raise RegistryError(f"{self.where.host} wants an upload to be sent to another host: {url.hostname}")
        return url

    def _patch(self, url: SplitResult, piece: bytes, at: int) -> SplitResult:
        headers = {"Content-Type": _BYTES, "Content-Range": f"{at}-{at + len(piece) - 1}"}
        with self._once("PATCH", url, headers, piece) as answer:
            self._uploaded(answer, HTTPStatus.ACCEPTED)
            return self._location(answer)

    def _close(self, url: SplitResult, digest: str, rest: bytes) -> None:
        query = f"{url.query}&" if url.query else ""
        url = url._replace(query=query + urlencode({"digest": digest}))
        with self._once("PUT", url, {"Content-Type": _BYTES}, rest) as answer:
            self._uploaded(answer, HTTPStatus.CREATED)

    def _uploaded(self, answer: RegistryAnswer, wanted: int) -> None:
        if answer.status == wanted:
            return
        if answer.status in {HTTPStatus.BAD_REQUEST, HTTPStatus.NOT_FOUND, HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE}:
            raise Interrupted(f"{self.where.host} lost an upload{_said(answer)}")
        raise self._unexpected(answer, "an upload")

    def _left_at(self, url: SplitResult, most: int) -> tuple[SplitResult | None, int]:
        """Ask how much of an upload arrived; to begin anew if that is not told."""
        try:
            with self._ask("GET", url) as answer:
                found = _RANGE.fullmatch(answer.header("Range"))
                if answer.status != HTTPStatus.NO_CONTENT or found is None:
                    return None, 0
                at = int(found[1]) + 1 if found[1] != "0" else 0
                return (self._location(answer) if answer.header("Location") else url, at) if at <= most else (None, 0)
        except RegistryError:
            return None, 0

    def put_manifest(self, data: bytes, media: str, ref: str) -> None:
        """Write a manifest under a digest or a tag."""
        with self._ask("PUT", self._url(f"manifests/{quote(ref, safe=':')}"), {"Content-Type": media}, data) as answer:
            if answer.status not in {HTTPStatus.OK, HTTPStatus.CREATED, HTTPStatus.ACCEPTED}:
                raise self._unexpected(answer, "a manifest")

    def refer(self, all_: Sequence[tuple[str, Mapping[str, Json]]], artifact: str) -> None:
        """See that manifests which are there are listed with those that they refer to: by the registry, or by a tag.

        ``all_`` are digests of subjects, each with a descriptor.  The tag is a list that all share, without locks.
        """
        for _ in range(_ROUNDS):
            lacking = [(of, one) for of, one in all_ if one["digest"] not in _digests(self.referrers(of, artifact))]
            if not lacking:
                return
            for of, one in lacking:
                known = self._listed_by_tag(of)
                if one["digest"] not in _digests(known):
                    self._list(of, known, one)
            # Others may have read the list before, and write it now: then ours is no longer in it.
            time.sleep(random.uniform(*_LIST_PAUSE))  # noqa: S311 - not for secrets
        raise RegistryError(f"{self.where.host} does not list the signatures, or others write the list all the time")

    def _list(self, of: str, known: Sequence[Json], one: Mapping[str, Json]) -> None:
        """Write a tag's list with one more; without what was deleted since, where it is refused with that."""

        def write(others: Sequence[Json]) -> None:
            made: dict[str, Json] = {"schemaVersion": 2, "mediaType": _INDEX, "manifests": [*others, dict(one)]}
            self.put_manifest(json.dumps(made, sort_keys=True, separators=(",", ":")).encode(), _INDEX, _tag_of(of))

        try:
            write(known)
        except RegistryError:
            there = [each for each in known if isinstance(each, dict) and self._is_there(str(each.get("digest")))]
            if len(there) == len(known):
                raise
            write(there)

    def _is_there(self, digest: str) -> bool:
        with contextlib.suppress(NotFound):
            return bool(self.manifest(digest))
        return False


def _digest(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def _tag_of(digest: str) -> str:
    """Return the tag that stands for the list of what refers to a manifest, where a registry keeps none."""
    return digest.replace(":", "-")


def _listed(data: bytes) -> list[Json]:
    try:
        told = messages.members(messages.parse(data, largest=_LARGEST, most=_VALUES))
        # What was added last stands at the end; each push of years may be among it.
        return messages.items(told, "manifests", most=_VALUES)[-_MOST:]
    except messages.BadMessage as error:
        raise RegistryError(f"the registry's list of signatures cannot be read: {error}") from None


def _digests(listed: Sequence[Json]) -> set[Json]:
    found = (one.get("digest") for one in listed if isinstance(one, dict))
    return {one for one in found if isinstance(one, str)}


def _said(answer: RegistryAnswer) -> str:
    """Return what a registry says to its refusal."""
    try:
        told = messages.members(messages.parse(answer.piece()[:_COMPLAINT], largest=_COMPLAINT))
        first = messages.members(messages.items(told, "errors", most=100)[0])
        words = first.get("message") or first.get("code")
    except (Interrupted, RegistryError, messages.BadMessage, IndexError):
        return ""
    return f": {words[:200]}" if isinstance(words, str) else ""
