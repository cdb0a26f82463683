"""Push and pull, with a registry that does what a test has it do."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import socket
import ssl
import threading
import time
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

import pytest
from msgspec.structs import replace

from tests.support import registries
from tests.support.bundles import content
from tests.support.registries import BASIC, Request, SmallRegistry
from xpucached.bundling import registries as bundling
from xpucached.bundling.staging import staging
from xpucached.domain.bundles import PullBundle, PullReport, PushBundle, PushReport, RegistryAccess
from xpucached.errors import AlreadyThere, BadBundle, Conflict, NotFound, RegistryDenied, RegistryError, RequestError
from xpucached.registry import client, reference, retrying, transport
from xpucached.registry.accounts import Account
from xpucached.registry.login import Login
from xpucached.registry.retrying import Interrupted
from xpucached.registry.transport import Transport

if TYPE_CHECKING:
    from collections.abc import Callable

ME: Final = Account("me", "word")
QUICK: Final = RegistryAccess(plain_http=True, patience=20)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for nothing."""
    monkeypatch.setattr(retrying, "_FIRST_PAUSE", 0.001)
    monkeypatch.setattr(client, "_LIST_PAUSE", (0.0, 0.001))


def push(registry: SmallRegistry, bundle: Path, tag: str = "v1", *, if_changed: bool = False) -> PushReport:
    order = PushBundle(bundle, f"{registry.host}/caches/app:{tag}", QUICK, if_changed=if_changed)
    return bundling.push(order, lambda *_: None)


def pull(registry: SmallRegistry, dest: Path, ref: str = ":v1", access: RegistryAccess = QUICK) -> PullReport:
    return bundling.pull(PullBundle(f"{registry.host}/caches/app{ref}", dest, access), lambda *_: None)


def layer_of(bundle: Path) -> str:
    """Return the digest of the largest blob."""
    return f"sha256:{max((bundle / 'blobs/sha256').iterdir(), key=lambda one: one.stat().st_size).name}"


# -- as it should be --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("api", [True, False], ids=["api", "tag"])
@pytest.mark.parametrize("tokens", [True, False], ids=["token", "basic"])
def test_what_was_pushed_comes_back_the_same(
    registry: SmallRegistry, bundle: Path, tmp_path: Path, *, api: bool, tokens: bool
) -> None:
    registry.api, registry.tokens = api, tokens
    first = push(registry, bundle)
    again = push(registry, bundle, "v2")
    assert (first.sent, first.present, first.signatures) == (4, 0, 2)
    # Of the signatures it is asked what they say.
    assert (again.sent, again.present, again.bytes, again.signatures) == (0, 2, 0, 2)
    # The tag comes last: who finds it finds all.
    assert registry.paths("PUT")[-1].endswith("/manifests/v2")

    told = pull(registry, tmp_path / "bundle")
    assert content(tmp_path / "bundle") == content(bundle)
    assert (told.view.digest, told.signatures, told.kept) == (first.digest, 2, 0)
    assert told.view.unsigned.startswith("its key is not trusted here: sha256:")
    pull(registry, tmp_path / "one.tar", f"@{first.digest}")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bundle", "home", "one.tar"]
    with pytest.raises(AlreadyThere):
        pull(registry, tmp_path / "bundle")
    with pytest.raises(NotFound, match="v3"):
        pull(registry, tmp_path / "none", ":v3")
    # Only what is needed is asked for, whatever the registry says.
    scopes = registry.paths("GET", "/token")
    assert all("scope=repository%3Acaches%2Fapp%3Apull" in path for path in scopes)
    assert bool(scopes) is tokens


def test_what_another_repository_has_is_linked(registry: SmallRegistry, bundle: Path) -> None:
    push(registry, bundle)
    told = bundling.push(PushBundle(bundle, f"{registry.host}/other:v1", QUICK, "caches/app"), lambda *_: None)
    # For this registry a signature is in every repository.
    assert told.sent + told.present + told.mounted == 2
    token = next(path for path in reversed(registry.paths("GET", "/token")))
    assert "scope=repository%3Aother%3Apull%2Cpush&scope=repository%3Acaches%2Fapp%3Apull" in token


def test_another_s_signature_stays_in_the_list_that_stands_for_the_api(registry: SmallRegistry, bundle: Path) -> None:
    registry.api = False
    other = {"mediaType": "application/vnd.oci.image.manifest.v1+json", "digest": f"sha256:{'7' * 64}", "size": 7}
    told = push(registry, bundle)
    tag = told.digest.replace(":", "-")
    for before in ([other], []):
        listed = {"schemaVersion": 2, "manifests": before}
        registry.manifests[tag] = json.dumps(listed).encode(), registries.INDEX
        push(registry, bundle)
        found = json.loads(registry.manifests[tag][0])["manifests"]
        assert [one for one in found if one == other] == before
        assert len(found) == len(before) + 1


# -- what breaks off --------------------------------------------------------------------------------------------------


def cut(at: int, times: int, part: str = "/blobs/") -> Callable[[Request], bool]:
    """Give some bytes of a blob and hang up, so many times."""
    left = [times]

    def instead(request: Request) -> bool:
        if request.command != "GET" or part not in request.path or not left[0]:
            return False
        left[0] -= 1
        whole = request.registry.blobs[request.path.rpartition("/")[2]]
        begin = int((request.headers.get("Range") or "bytes=0-")[6:-1])
        request.send_response(206 if begin else 200)
        request.send_header("Content-Length", str(len(whole) - begin))
        request.send_header("Content-Range", f"bytes {begin}-{len(whole) - 1}/{len(whole)}")
        request.end_headers()
        request.wfile.write(whole[begin : begin + at])
        return True

    return instead


def test_what_breaks_off_goes_on_where_it_was(registry: SmallRegistry, bundle: Path, tmp_path: Path) -> None:
    push(registry, bundle)
    layer = layer_of(bundle)
    registry.instead = cut(100, 3, layer)
    told = pull(registry, tmp_path / "bundle")
    ranges = [range_ for method, path, _, range_ in registry.seen if method == "GET" and layer in path]
    assert ranges == ["", "bytes=100-", "bytes=200-", "bytes=300-"]
    assert content(tmp_path / "bundle") == content(bundle)
    assert told.kept == 0

    # One that breaks off again and again is given up, and the next command has what came.
    registry.instead = cut(10, 99, layer)
    with pytest.raises(RegistryError, match=r"broke off after 50 of \d+ bytes of a blob \(tried 5 times\)"):
        pull(registry, tmp_path / "later")
    assert not (tmp_path / "later").exists()
    registry.instead = None
    told = pull(registry, tmp_path / "later")
    assert told.kept >= 50
    assert content(tmp_path / "later") == content(bundle)


def test_a_part_that_was_spoilt_meanwhile_is_got_anew(registry: SmallRegistry, bundle: Path, tmp_path: Path) -> None:
    push(registry, bundle)
    registry.instead = cut(10, 99, layer_of(bundle))
    with pytest.raises(RegistryError):
        pull(registry, tmp_path / "one")
    (part,) = (tmp_path / ".one.pulling").rglob("*.part")
    part.write_bytes(b"x" * 20)
    registry.instead = None
    pull(registry, tmp_path / "one")
    assert content(tmp_path / "one") == content(bundle)


def test_a_registry_that_does_not_go_on_is_asked_for_all(registry: SmallRegistry, bundle: Path, tmp_path: Path) -> None:
    push(registry, bundle)
    layer = layer_of(bundle)
    for status, range_ in ((200, ""), (206, "bytes 0-9/10"), (416, "")):
        first = cut(100, 1, layer)

        def instead(request: Request, status: int = status, range_: str = range_, first: object = first) -> bool:
            if not request.headers.get("Range"):
                return first(request)  # type: ignore[operator, no-any-return]
            return request.say(status, request.registry.blobs[layer] if status != 416 else b"", Content_Range=range_)

        registry.instead = instead
        pull(registry, tmp_path / f"{status}{len(range_)}")
        assert content(tmp_path / f"{status}{len(range_)}") == content(bundle)


@pytest.mark.parametrize("status", [429, 500, 502, 503])
def test_what_fails_for_a_while_is_tried_again(
    registry: SmallRegistry, bundle: Path, tmp_path: Path, status: int
) -> None:
    failed: dict[tuple[str, str], int] = {}

    def instead(request: Request) -> bool:
        key = (request.command, request.path.partition("?")[0].rstrip("0123456789"))
        failed[key] = failed.get(key, 0) + 1
        return failed[key] < 3 and request.say(status, Retry_After="0")

    registry.instead = instead
    push(registry, bundle)
    failed.clear()
    pull(registry, tmp_path / "bundle")
    assert content(tmp_path / "bundle") == content(bundle)

    registry.instead = lambda request: request.say(status, b'{"errors":[{"code":"UNKNOWN","message":"no"}]}')
    with pytest.raises(RegistryError, match=rf"answered {status} \(tried 5 times\)"):
        pull(registry, tmp_path / "later")
    assert not (tmp_path / "later").exists()


def test_an_upload_goes_on_where_it_was_or_begins_anew(
    registry: SmallRegistry, bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "_CHUNK", 100)
    stored = [3]
    lost = [1]

    def instead(request: Request) -> bool:
        if request.command == "PATCH" and stored[0]:
            # It took a part of it, and died.
            stored[0] -= 1
            name = request.path.rpartition("/")[2].partition("?")[0]
            registry.uploads[name] += request.body[:40]
            return request.say(500)
        if request.command == "PUT" and "/uploads/" in request.path and lost[0]:
            lost[0] -= 1
            registry.uploads.clear()
            return request.say(404)
        return False

    registry.instead = instead
    told = push(registry, bundle)
    assert told.sent == 4
    assert set(registry.blobs) >= {layer_of(bundle)}
    assert registry.paths("GET", "/uploads/")


# -- what lies --------------------------------------------------------------------------------------------------------


def changed(part: str, change: Callable[[bytes], bytes]) -> Callable[[Request], bool]:
    def instead(request: Request) -> bool:
        name = request.path.rpartition("/")[2]
        if request.command != "GET" or part not in request.path:
            return False
        known = request.registry.blobs.get(name) or request.registry.manifests.get(name, (b"",))[0]
        return bool(known) and bool(request.auth) and request.say(200, change(known))

    return instead


@pytest.mark.parametrize(
    ("part", "change"),
    [
        ("/blobs/", lambda data: bytes([data[0] ^ 1]) + data[1:]),
        ("/blobs/", lambda data: data + b"x"),
        ("/manifests/sha256:", lambda data: data.replace(b'"schemaVersion":2', b'"schemaVersion": 2')),
        ("/manifests/v1", lambda _: b'{"manifests":[]}'),
        ("/manifests/v1", lambda _: b'{"manifests":{}}'),
        ("/manifests/v1", lambda data: data.replace(b'"size":', b'"size":1')),
        ("/manifests/v1", lambda _: b"[" * 100_000),
        ("/manifests/v1", lambda _: b"<html>"),
    ],
    ids=["bit", "longer", "manifest", "empty", "form", "size", "deep", "page"],
)
def test_what_is_not_what_its_digest_says_leaves_nothing(
    registry: SmallRegistry, bundle: Path, tmp_path: Path, part: str, change: Callable[[bytes], bytes]
) -> None:
    push(registry, bundle)
    registry.instead = changed(part, change)
    with pytest.raises(BadBundle):
        pull(registry, tmp_path / "bundle")
    assert [path.name for path in tmp_path.iterdir()] == ["home"]


def test_more_than_was_asked_for_is_not_read(registry: SmallRegistry, bundle: Path, tmp_path: Path) -> None:
    push(registry, bundle)
    registry.instead = changed("/manifests/v1", lambda data: data + b" " * (5 << 20))
    with pytest.raises(RegistryError, match="more than"):
        pull(registry, tmp_path / "bundle")


def test_what_is_listed_and_signs_something_else_is_left(registry: SmallRegistry, bundle: Path, tmp_path: Path) -> None:
    told = push(registry, bundle)
    listed = json.dumps(
        {
            "manifests": [
                {"mediaType": media, "digest": name, "size": len(data)}
                for name, (data, media) in registry.manifests.items()
                if name.startswith("sha256:")
            ]
        }
    ).encode()
    registry.instead = lambda request: "/referrers/" in request.path and bool(request.auth) and request.say(200, listed)
    again = pull(registry, tmp_path / "bundle")
    assert (again.signatures, again.view.digest) == (2, told.digest)


def test_a_list_of_tiny_values_is_not_taken_apart(registry: SmallRegistry, bundle: Path, tmp_path: Path) -> None:
    """Ten pages of them, as many as are held, would take more than a gigabyte."""
    push(registry, bundle)
    listed = b'{"manifests":[{"annotations":[' + b'{"":0},' * 200_000 + b"0]}]}"
    registry.instead = lambda request: "/referrers/" in request.path and bool(request.auth) and request.say(200, listed)
    with pytest.raises(RegistryError, match="more than 100000 values"):
        pull(registry, tmp_path / "bundle")


# -- who stalls -------------------------------------------------------------------------------------------------------


def test_who_stalls_or_drips_is_given_up(
    registry: SmallRegistry, bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    push(registry, bundle)
    monkeypatch.setattr(retrying, "TRIES", 1)

    def silent(request: Request) -> bool:
        return request.registry.released.wait(30)

    def drips_head(request: Request) -> bool:
        for one in b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\nX: " + b"x" * 1000:
            request.wfile.write(bytes([one]))
            request.wfile.flush()
            if request.registry.released.wait(0.02):
                break
        return True

    def drips_body(request: Request) -> bool:
        if "/blobs/" not in request.path:
            return False
        request.send_response(200)
        request.send_header("Content-Length", "100000")
        request.end_headers()
        while not request.registry.released.wait(0.02):
            request.wfile.write(b"x")
        return True

    def no_http(request: Request) -> bool:
        request.wfile.write(b"\0" * 100)
        return True

    for number, (instead, why) in enumerate(
        (
            (silent, "does not answer"),
            (drips_head, "does not answer"),
            (drips_body, "does not answer|longer"),
            (no_http, "no HTTP"),
        )
    ):
        registry.instead = instead
        began = time.monotonic()
        # What answers at once is waited for on a busy machine, too.
        patience = 20 if instead is no_http else 0.3
        with pytest.raises((RegistryError, BadBundle), match=why):
            pull(registry, tmp_path / str(number), access=replace(QUICK, patience=patience))
        assert time.monotonic() - began < 25
        assert not (tmp_path / str(number)).exists()
    registry.released.set()


def test_who_answers_each_question_just_in_time_is_given_up_all_the_same(
    registry: SmallRegistry, bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    push(registry, bundle)
    monkeypatch.setattr(transport, "_ALL", 0.5)
    for number, what in enumerate(("/referrers/", "/blobs/")):

        def late(request: Request, what: str = what) -> bool:
            return what in request.path and request.registry.released.wait(2)

        registry.instead = late
        with pytest.raises(RegistryError, match="for all of it"):
            pull(registry, tmp_path / str(number))
    registry.released.set()


def test_a_chunk_of_less_than_nothing_takes_no_more_than_a_piece(registry: SmallRegistry) -> None:
    def instead(request: Request) -> bool:
        request.send_response(200)
        request.send_header("Transfer-Encoding", "chunked")
        request.end_headers()
        request.wfile.write(b"-1\r\n" + bytes(8 << 20))
        request.close_connection = True
        return True

    registry.instead = instead
    asking = Transport(ca_file=None, plain_http=True, patience=30)
    with asking.ask("GET", urlsplit(f"http://{registry.host}/v2/"), {}) as answer:
        assert 0 < len(answer.piece()) < 1 << 20


# -- who hears an account ---------------------------------------------------------------------------------------------


def test_an_account_does_not_follow_to_another_host(registry: SmallRegistry, bundle: Path, tmp_path: Path) -> None:
    push(registry, bundle)
    with registries.small("localhost") as other:
        other.account = False
        other.blobs = registry.blobs

        def instead(request: Request) -> bool:
            where = f"http://{other.host}{request.path}"
            return "/blobs/" in request.path and bool(request.auth) and request.say(307, Location=where)

        registry.instead = instead
        pull(registry, tmp_path / "bundle")
        assert content(tmp_path / "bundle") == content(bundle)
        assert {auth for _, _, auth, _ in other.seen} == {""}

        # Nor where that one asks for it.
        other.account, other.tokens = True, False
        with pytest.raises(RegistryDenied, match=r"localhost, to which .* sends, refuses that"):
            pull(registry, tmp_path / "later")
        assert {auth for _, _, auth, _ in other.seen} == {""}

        # An upload does not go there at all.
        registry.blobs = {}
        registry.instead = lambda request: (
            request.command == "POST" and bool(request.auth) and request.say(202, Location=f"http://{other.host}/up")
        )
        other.seen.clear()
        with pytest.raises(RegistryError, match="upload to be sent to another host: localhost"):
            push(registry, bundle)
        assert other.seen == []


@pytest.mark.parametrize(
    "where", ["http://192.0.2.7/blob", "file:///etc/passwd", "ftp://127.0.0.1/", "//192.0.2.7/x", ""]
)
def test_a_way_that_is_not_safe_is_not_gone(registry: SmallRegistry, bundle: Path, tmp_path: Path, where: str) -> None:
    push(registry, bundle)
    registry.account = False
    registry.instead = lambda request: "/blobs/" in request.path and request.say(302, Location=where)
    with pytest.raises(RegistryError, match=r"without TLS|no address|without end"):
        pull(registry, tmp_path / "bundle", access=replace(QUICK, plain_http=False))


@pytest.mark.parametrize(
    "where",
    [
        *("http://[x/blob", "http://127.0.0.1:99999/", "http://127.0.0.1/\xe4", f"http://{'a' * 64}.example/", "/\xe4"),
        *("http://a\0.example/", "https://localhost\0.example/"),
    ],
)
def test_an_address_that_is_none_is_said(registry: SmallRegistry, bundle: Path, tmp_path: Path, where: str) -> None:
    push(registry, bundle)
    registry.instead = lambda request: "/blobs/" in request.path and request.say(302, Location=where)
    with pytest.raises(RegistryError, match="no address of a registry"):
        pull(registry, tmp_path / "bundle")
    registry.instead = None
    registry.realm = where
    with pytest.raises(RegistryError, match=r"no address of a registry|does not say who gives tokens"):
        pull(registry, tmp_path / "bundle")


def test_who_is_elsewhere_sends_nobody_to_a_server_of_this_host() -> None:
    base = urlsplit("https://registry.example.com/v2/")
    ways = ["http://127.0.0.1:631/", "//localhost/x", "http://[::1]:8080/", "http://127.1/", "http://2130706433:631/"]
    ways += [
        "http://0x7f000001/",
        "http://0.0.0.0/",
        "http://[::]/",
        "http://[::ffff:127.0.0.1]/",
        "http://localhost./",
    ]
    for where in ways:
        with pytest.raises(RegistryError, match="a server of this host itself"):
            transport.address(where, base)
    assert transport.address("blobs/x", base).geturl() == "https://registry.example.com/v2/blobs/x"


def test_a_length_of_more_digits_than_are_read_is_none(registry: SmallRegistry, bundle: Path, tmp_path: Path) -> None:
    push(registry, bundle)

    def instead(request: Request) -> bool:
        if request.command != "GET" or "/manifests/" not in request.path or not request.auth:
            return False
        request.send_response(200)
        request.send_header("Content-Length", "7" * 5000)
        request.end_headers()
        request.close_connection = True
        return True

    registry.instead = instead
    with pytest.raises(BadBundle):
        pull(registry, tmp_path / "bundle")


def test_an_account_is_told_to_the_host_that_gives_tokens_only_if_it_may_hear_it(
    registry: SmallRegistry, bundle: Path, tmp_path: Path
) -> None:
    with registries.small("localhost") as other:
        registry.realm = f"http://{other.host}/token"
        with pytest.raises(RegistryDenied, match="another host, localhost") as refused:
            push(registry, bundle)
        assert refused.value.hint.endswith("--token-host localhost")
        assert other.seen == []
        access = replace(QUICK, token_host="localhost")  # noqa: S106 - a host
        bundling.push(PushBundle(bundle, f"{registry.host}/caches/app:v1", access), lambda *_: None)
        assert {auth for _, path, auth, _ in other.seen if path.startswith("/token")} == {BASIC}
    for realm in ("http://192.0.2.7/token", "https://user:word@127.0.0.1/", "", "word"):
        registry.realm = realm or "x"
        with pytest.raises((RegistryDenied, RegistryError)):
            pull(registry, tmp_path / "bundle")


@pytest.mark.parametrize(
    "token",
    [b'{"token":"a\\r\\nX: y"}', b'{"token":""}', b'{"token":7}', b"[]", b"x" * 300_000, b'{"token":"\xc3\xa4"}'],
)
def test_a_token_that_is_none_is_not_sent(registry: SmallRegistry, tmp_path: Path, token: bytes) -> None:
    registry.instead = lambda request: request.path.startswith("/token") and request.say(200, token)
    with pytest.raises(RegistryError, match=r"token|more than"):
        pull(registry, tmp_path / "bundle")


def test_without_the_right_account_it_is_said_whose(registry: SmallRegistry, bundle: Path, home: Path) -> None:
    for tokens in (True, False):
        registry.tokens = tokens
        registries.log_in(home / ".docker", registry.host, word="wrong")
        with pytest.raises(RegistryDenied, match="refuses that as pusher"):
            push(registry, bundle)
        registries.log_in(home / ".docker", "elsewhere.example.com")
        with pytest.raises(RegistryDenied, match="wants an account") as refused:
            push(registry, bundle)
        assert refused.value.hint == f"docker login {registry.host}, or podman login {registry.host}"
    registry.instead = lambda request: request.say(401, WWW_Authenticate="Negotiate")
    with pytest.raises(RegistryError, match="not known: negotiate"):
        push(registry, bundle)


def test_an_identity_token_is_changed_for_one_of_this_repository(
    registry: SmallRegistry, bundle: Path, home: Path, tmp_path: Path
) -> None:
    said = {"auths": {registry.host: {"identitytoken": "identity"}}}
    (home / ".docker/config.json").write_text(json.dumps(said), encoding="utf-8")
    push(registry, bundle)
    pull(registry, tmp_path / "bundle")
    assert content(tmp_path / "bundle") == content(bundle)
    assert {method for method, path, _, _ in registry.seen if path == "/token"} == {"POST"}
    registry.tokens = False
    with pytest.raises(RegistryDenied, match="wants an account"):
        push(registry, bundle)
    assert not any("identity" in auth for _, _, auth, _ in registry.seen)


def test_through_a_proxy_the_registry_alone_hears_the_account(
    bundle: Path, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ca, own, key = registries.certificate(tmp_path)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(own, key)
    place = f"{registries.ELSEWHERE}/caches/app:v1"
    registries.log_in(home / ".docker", registries.ELSEWHERE)
    access = RegistryAccess(ca, patience=5)
    with registries.small(tls=tls) as one, registries.proxy(one.host) as (where, asked):
        one.realm = f"https://{registries.ELSEWHERE}/token"
        monkeypatch.setenv("HTTPS_PROXY", f"http://me:p%40ss@{where}")
        bundling.push(PushBundle(bundle, place, access), lambda *_: None)
        bundling.pull(PullBundle(place, tmp_path / "bundle", access), lambda *_: None)
        assert content(tmp_path / "bundle") == content(bundle)
        me = "Basic " + base64.b64encode(b"me:p@ss").decode()
        assert {*asked} == {(f"{registries.ELSEWHERE}:443", me)}
        assert me not in {auth for _, _, auth, _ in one.seen}
        # One with a certificate of nobody whom we trust is told nothing.
        one.seen.clear()
        with pytest.raises(RegistryError, match=r"certificate of registry\.example\.com is not trusted"):
            bundling.pull(PullBundle(place, tmp_path / "none", RegistryAccess(patience=5)), lambda *_: None)
        assert one.seen == []


@pytest.mark.parametrize(
    ("pause", "said"), [(0.0, "answered no HTTP"), (0.02, "does not answer")], ids=["long", "slow"]
)
def test_what_a_proxy_says_is_bounded(pause: float, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "_CONNECT", 0.3 if pause else 10)
    most = 500
    told: list[int] = []

    def tell(listener: socket.socket) -> None:
        with listener, contextlib.suppress(OSError):
            other, _ = listener.accept()
            with other:
                other.recv(1 << 16)
                other.sendall(b"HTTP/1.1 200 so be it\r\n")
                for number in range(most):
                    other.sendall(b"X-More: of this\r\n")
                    told.append(number)
                    time.sleep(pause)

    listener = socket.create_server(("127.0.0.1", 0))
    monkeypatch.setenv("HTTPS_PROXY", f"http://127.0.0.1:{listener.getsockname()[1]}")
    thread = threading.Thread(target=tell, args=(listener,))
    thread.start()
    with pytest.raises(Interrupted, match=said):
        Transport(ca_file=None, plain_http=False, patience=20).ask(
            "GET", urlsplit(f"https://{registries.ELSEWHERE}/"), {}
        )
    thread.join()
    assert not pause or len(told) < most


@pytest.mark.parametrize("proxy", ["http://a..b:80", f"http://{'a' * 64}", "http://[::1", "http://a:99999", "ftp://a"])
def test_a_proxy_that_is_none_is_said(proxy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", proxy)
    asking = Transport(ca_file=None, plain_http=False, patience=20)
    with pytest.raises(RegistryError) as caught:
        asking.ask("GET", urlsplit(f"https://{registries.ELSEWHERE}/"), {})
    assert caught.value.hint == "HTTPS_PROXY=http://HOST:PORT"


def test_a_name_with_many_dead_addresses_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "_CONNECT", 0.05)
    monkeypatch.setattr(transport, "_REACH", 0.2)
    with contextlib.ExitStack() as stack:
        full = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        for _ in range(4):  # what nobody accepts fills it: the kernel answers no more
            other = stack.enter_context(socket.socket())
            other.settimeout(0)
            other.connect_ex(full.getsockname())
        left = iter([(socket.AF_INET, socket.SOCK_STREAM, 6, "", full.getsockname())] * 200)
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: left)
        with pytest.raises(Interrupted, match="does not answer"):
            Transport(ca_file=None, plain_http=True, patience=20).ask("GET", urlsplit("http://many.example/"), {})
        assert len(list(left)) > 150


def test_the_first_address_that_answers_is_taken(registry: SmallRegistry, monkeypatch: pytest.MonkeyPatch) -> None:
    host, _, port = registry.host.partition(":")
    with socket.create_server(("127.0.0.1", 0)) as closed:
        dead = closed.getsockname()
    found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", place) for place in (dead, (host, int(port)))]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
    with Transport(ca_file=None, plain_http=True, patience=20).ask(
        "GET", urlsplit("http://some.example/v2/"), {}
    ) as one:
        assert one.status == HTTPStatus.UNAUTHORIZED


# -- this side --------------------------------------------------------------------------------------------------------


def test_a_place_that_others_made_is_not_used(registry: SmallRegistry, bundle: Path, tmp_path: Path) -> None:
    push(registry, bundle)
    place = tmp_path / ".bundle.pulling"
    place.symlink_to(tmp_path / "home")
    with pytest.raises(Conflict, match="not ours alone"):
        pull(registry, tmp_path / "bundle")
    place.unlink()
    place.mkdir()
    place.chmod(0o777)
    with pytest.raises(Conflict, match="not ours alone"):
        pull(registry, tmp_path / "bundle")
    place.chmod(0o700)
    with staging(tmp_path / "bundle"), pytest.raises(Conflict, match="just now"):
        pull(registry, tmp_path / "bundle")
    pull(registry, tmp_path / "bundle")


@pytest.mark.parametrize(
    "text",
    [
        *("app:v1", "app", "", "/app", "h.example//app", "h.example/App", "h.example/../app", "h.example:x/app"),
        *("http://h.example/app", "h.example/app:v 1", "user@h.example/a", "h.example/app@sha256:77"),
        *("h.example/app?x", "h.example/app#x", "h.example:99999/app", "[::::]:5000/app", f"{'a' * 64}.example/app"),
    ],
)
def test_what_is_no_place_in_a_registry_is_refused(text: str, tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"no place in a registry|names no registry"):
        bundling.pull(PullBundle(text, tmp_path / "bundle"), lambda *_: None)


def test_without_tls_only_this_host_is_asked(tmp_path: Path, bundle: Path, registry: SmallRegistry) -> None:
    with pytest.raises(RequestError, match="a tag, not a digest"):
        bundling.push(PushBundle(bundle, f"{registry.host}/app@sha256:{'7' * 64}"), lambda *_: None)
    push(registry, bundle)
    with pytest.raises(RegistryDenied, match="without TLS: it is not told"):
        pull(registry, tmp_path / "bundle", access=replace(QUICK, plain_http=False))
    registry.account = False
    pull(registry, tmp_path / "bundle", access=replace(QUICK, plain_http=False))
    # Who gives tokens is another: that one speaks none is no reason to ask the registry without, again and again.
    realm = f'Bearer realm="https://{registry.host}/token"'
    registry.instead = lambda request: request.path == "/v2/" and request.say(401, WWW_Authenticate=realm)
    with pytest.raises(RegistryError, match=r"which gives tokens for .*, does not speak TLS"):
        pull(registry, tmp_path / "other", access=replace(QUICK, plain_http=False))
    # Nor is anybody elsewhere told an account without it.
    login = Login(
        reference.parse("192.0.2.7/app"), Transport(ca_file=None, plain_http=True, patience=1), lambda: ME, ()
    )
    with pytest.raises(RegistryDenied, match="without TLS: it is not told"):
        login.answer(["Basic realm=x"])
    with pytest.raises(RegistryDenied, match="without TLS: it is not told"):
        login.answer(['Bearer realm="http://192.0.2.7/token"'])
    assert login.headers == {}


def test_a_pipe_is_no_file_of_authorities(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(RegistryError, match="is no file"):
        Transport(ca_file=tmp_path / "pipe", plain_http=True, patience=1)
