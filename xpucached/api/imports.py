"""What one may tell a user's daemon of what came into its stores from elsewhere."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from xpucached import codec
from xpucached.api.endpoints import Request, Right, endpoint, need
from xpucached.domain.bundles import MadeEntry
from xpucached.domain.jobs import Job

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

MOST: Final = 1000
"""Entries of one request."""

_LARGEST_PART: Final = 512 << 10
"""Bytes of them: half of what a body may have, as there is more in it."""

_DIGEST: Final = re.compile(r"sha256:[0-9a-f]{64}")
_LONGEST: Final = 200
_MOST_DIGESTS: Final = 256
_MOST_SECONDS: Final = 1e9
_LARGEST: Final = 1 << 50


class BundleEntries(Struct, frozen=True, kw_only=True):
    """Entries of one bundle, and of whom they are."""

    bundle: str
    made: tuple[MadeEntry, ...]
    signer: str = ""
    signing_key: str = ""
    digests: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Refuse what is no bundle, and no place."""
        need(_DIGEST.fullmatch(self.bundle) is not None, "bundle: expected sha256: and 64 hex digits")
        need(len(self.signer) <= _LONGEST, "signer: expected at most 200 characters")
        need(not self.signing_key or _DIGEST.fullmatch(self.signing_key) is not None, "signing_key: expected a digest")
        need(len(self.digests) <= _MOST_DIGESTS, f"digests: expected at most {_MOST_DIGESTS}")
        need(all(_DIGEST.fullmatch(one) for one in self.digests), "digests: expected sha256: and 64 hex digits each")
        need(len(self.made) <= MOST, f"made: expected at most {MOST}")
        need(
            all(0 <= one.seconds <= _MOST_SECONDS and 0 <= one.input_size < _LARGEST for one in self.made),
            "made: expected seconds and sizes that something can have",
        )
        places = (one.store for one in self.made)
        need(all(one.is_absolute() and "\0" not in str(one) for one in places), "made: expected absolute paths")


@endpoint("POST", "/v1/imports", right=Right.CHANGE, status=202, location="/v1/jobs/{id}")
class NoteImport(BundleEntries, Request[Job], frozen=True, kw_only=True):
    """Say which entries came with a bundle, and look at their stores."""


@endpoint("POST", "/v1/imports/coming", right=Right.CHANGE)
class NoteComing(BundleEntries, Request[None], frozen=True, kw_only=True):
    """Say which entries of a bundle are about to be put into stores: nobody may live to say that they came."""


def parts(made: Sequence[MadeEntry]) -> Iterator[tuple[MadeEntry, ...]]:
    """Divide entries into parts, each of which one request takes."""
    part, size = list[MadeEntry](), 0
    for one in made:
        more = len(codec.dumps(codec.to_json(one)))
        if len(part) == MOST or (part and size + more > _LARGEST_PART):
            yield tuple(part)
            part, size = [], 0
        part.append(one)
        size += more
    if part:
        yield tuple(part)
