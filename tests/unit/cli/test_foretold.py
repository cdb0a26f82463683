"""Entries of bundles are told of before they are there, where there is a daemon to note it."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING
from unittest.mock import MagicMock

import pytest
from msgspec.structs import replace

from xpucached.api import imports, intake
from xpucached.api.client import compose
from xpucached.api.endpoints import row
from xpucached.cli import bundles, connect, progress
from xpucached.domain.bundles import BundleSource, MadeEntry
from xpucached.domain.imports import EntriesCame
from xpucached.domain.names import EntryKey, KindName
from xpucached.errors import Busy, CatalogError, Unavailable, XpucachedError

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
            raise Unavailable("no daemon answers")
        client = MagicMock(call=asked.append)
        client.__enter__.return_value = client
        return client, False

    monkeypatch.setattr(connect, "reach", reach)
    tell = bundles._Foreteller(Namespace(verb="bundle import"))
    for _ in range(3):
        tell(COMING)
    told = noted(imports.NoteComing)
    assert (len(looked), asked) == ((3, [told] * 3) if daemon else (1, []))


def foreteller(monkeypatch: pytest.MonkeyPatch, *answers: XpucachedError | None) -> bundles._Foreteller:
    """Return who tells a daemon that answers so, one after the other."""
    client = MagicMock()
    client.__enter__.return_value = client
    client.call.side_effect = answers
    monkeypatch.setattr(connect, "reach", lambda _options: (client, False))
    monkeypatch.setattr(progress, "_PAUSE", 0.0)
    return bundles._Foreteller(Namespace(verb="bundle import"))


@pytest.mark.parametrize("before", [0, 2])
@pytest.mark.parametrize("error", [Busy("too many connections"), CatalogError("the disk is full")])
def test_what_a_daemon_does_not_note_is_not_put_into_a_store(
    monkeypatch: pytest.MonkeyPatch, before: int, error: XpucachedError
) -> None:
    tell = foreteller(monkeypatch, *[None] * before, error)
    for _ in range(before):
        tell(COMING)
    with pytest.raises(XpucachedError, match=error.message):
        tell(COMING)


def test_a_daemon_that_noted_something_and_went_away_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    tell = foreteller(monkeypatch, None, Unavailable("away"), None, Unavailable("gone"))
    tell(COMING)
    tell(COMING)
    monkeypatch.setattr(progress, "_AWAY", 0.0)
    with pytest.raises(Unavailable, match="gone"):
        tell(COMING)


def test_entries_are_told_of_in_parts_that_a_request_takes() -> None:
    place = Path("/" + "/".join(["\u5eab" * 60] * 9))  # each letter of it is six bytes of JSON
    some = tuple(
        MadeEntry(KindName("sycl"), store, EntryKey(f"1/2/3/{number}/0"), "", "")
        for store in (place, Path("/short"))
        for number in range(1500)
    )
    some_parts = list(imports.parts(some))
    assert [one for part in some_parts for one in part] == list(some)
    assert max(map(len, some_parts)) == imports.MOST
    for part in some_parts:
        request = imports.NoteComing(bundle=DIGEST, made=part, digests=(DIGEST,) * 200)
        assert intake.read(row(imports.NoteComing), {}, "", compose(request)[2] or b"") == request


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
        raise Unavailable("no daemon answers")

    monkeypatch.setattr(connect, "reach", away)
    bundles._tell_daemon(Namespace(verb=verb), [came])
    assert ("no daemon noted" in capsys.readouterr().err) is said
