"""Entries of bundles are told of before they are there, where there is a daemon to note it."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING
from unittest.mock import MagicMock

import pytest

from xpucached.api import imports
from xpucached.cli import bundles, connect
from xpucached.domain.bundles import BundleSource, MadeEntry
from xpucached.domain.imports import EntriesCame
from xpucached.domain.names import EntryKey, KindName
from xpucached.errors import XpucachedError

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

DIGEST = f"sha256:{'1' * 64}"
COMING = EntriesCame(
    DIGEST,
    BundleSource("key", DIGEST, (DIGEST,)),
    (MadeEntry(KindName("sycl"), Path("/s"), EntryKey("1/2/3/4/0"), "", ""),),
    coming=True,
)


@pytest.mark.parametrize("daemon", [True, False])
def test_a_daemon_is_told_each_time_and_looked_for_once_where_there_is_none(
    monkeypatch: pytest.MonkeyPatch, *, daemon: bool
) -> None:
    asked: list[object] = []
    looked: list[None] = []

    def reach(_options: Namespace) -> tuple[AbstractContextManager[object], bool]:
        looked.append(None)
        if not daemon:
            raise XpucachedError("no daemon answers")
        client = MagicMock(call=asked.append)
        client.__enter__.return_value = client
        return client, False

    monkeypatch.setattr(connect, "reach", reach)
    tell = bundles._Foreteller(Namespace())
    for _ in range(3):
        tell(COMING)
    told = imports.NoteComing(bundle=DIGEST, made=COMING.made, signer="key", signing_key=DIGEST, digests=(DIGEST,))
    assert (len(looked), asked) == ((3, [told] * 3) if daemon else (1, []))
