"""Entries of bundles are told of before they are there, where there is a daemon to note it."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING
from unittest.mock import MagicMock

import pytest
from msgspec.structs import replace

from xpucached.api import imports
from xpucached.cli import bundles, connect
from xpucached.domain.bundles import BundleSource, MadeEntry
from xpucached.domain.imports import EntriesCame
from xpucached.domain.names import EntryKey, KindName
from xpucached.errors import XpucachedError

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

DIGEST = f"sha256:{'1' * 64}"
MADE = (MadeEntry(KindName("sycl"), Path("/s"), EntryKey("1/2/3/4/0"), "", ""),)
COMING = EntriesCame(
    DIGEST,
    BundleSource("key", DIGEST, (DIGEST,)),
    MADE,
    coming=True,
)


Noted = imports.NoteComing | imports.NoteImport


def noted(kind: type[Noted]) -> Noted:
    return kind(bundle=DIGEST, made=MADE, signer="key", signing_key=DIGEST, digests=(DIGEST,))


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
    tell = bundles._Foreteller(Namespace(verb="bundle import"))
    for _ in range(3):
        tell(COMING)
    told = noted(imports.NoteComing)
    assert (len(looked), asked) == ((3, [told] * 3) if daemon else (1, []))


@pytest.mark.parametrize(
    ("verb", "kind", "said"),
    [("bundle import", imports.NoteImport, True), ("replay", imports.NoteComing, False)],
)
def test_a_replay_has_nobody_look_at_its_store_and_expects_no_daemon(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], verb: str, kind: type[Noted], *, said: bool
) -> None:
    asked: list[object] = []
    client = MagicMock(call=asked.append)
    client.__enter__.return_value = client
    monkeypatch.setattr(connect, "reach", lambda _options: (client, False))
    came = replace(COMING, coming=False)
    bundles._tell_daemon(Namespace(verb=verb), [came])
    assert asked == [noted(kind)]

    def away(_options: Namespace) -> None:
        raise XpucachedError("no daemon answers")

    monkeypatch.setattr(connect, "reach", away)
    bundles._tell_daemon(Namespace(verb=verb), [came])
    assert ("no daemon noted" in capsys.readouterr().err) is said
