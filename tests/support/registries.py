"""Registries for tests: Debian's docker-registry with TLS and accounts, and a small one that does as it is told."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import http.server
import ipaddress
import json
import re
import select
import shutil
import socket
import ssl
import subprocess
import threading
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qs, urlsplit

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

USER, WORD = "pusher", "s3cret"
# The word above, as `htpasswd -B` writes it.
_HTPASSWD: Final = f"{USER}:$2b$04$abcdefghijklmnopqrstuuLZYjhNQAOdpbzt4WxWlUHjv1wsyH5DG\n"
ELSEWHERE: Final = "registry.example.com"
"""Another name in the certificate, for what a proxy leads to."""
BASIC: Final = "Basic " + base64.b64encode(f"{USER}:{WORD}".encode()).decode()
INDEX: Final = "application/vnd.oci.image.index.v1+json"


def certificate(place: Path) -> tuple[Path, Path, Path]:
    """Make an authority, and a certificate of this host that it signed; give both, and the key."""
    pytest.importorskip("cryptography")
    from cryptography import x509  # noqa: PLC0415 - an extra
    from cryptography.hazmat.primitives import hashes, serialization  # noqa: PLC0415 - an extra
    from cryptography.hazmat.primitives.asymmetric import ec  # noqa: PLC0415 - an extra

    now = datetime.now(UTC)

    def made(
        name: str,
        issuer: str,
        key: ec.EllipticCurvePrivateKey,
        by: ec.EllipticCurvePrivateKey,
        *more: x509.ExtensionType,
    ) -> bytes:
        one = x509.CertificateBuilder(
            x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, issuer)]),
            x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)]),
            key.public_key(),
            x509.random_serial_number(),
            now - timedelta(days=1),
            now + timedelta(days=1),
        )
        for extension in more:
            one = one.add_extension(extension, critical=False)
        return one.sign(by, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)

    authority, own = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    names = x509.SubjectAlternativeName(
        [x509.DNSName("localhost"), x509.DNSName(ELSEWHERE), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    )
    paths = place / "ca.pem", place / "own.pem", place / "own.key"
    paths[0].write_bytes(made("test", "test", authority, authority, x509.BasicConstraints(ca=True, path_length=None)))
    paths[1].write_bytes(made("localhost", "test", own, authority, names))
    form = serialization.PrivateFormat.PKCS8
    paths[2].write_bytes(own.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()))
    return paths


def log_in(folder: Path, host: str, user: str = USER, word: str = WORD) -> None:
    """Write an account as ``docker login`` does."""
    folder.mkdir(parents=True, exist_ok=True)
    auth = base64.b64encode(f"{user}:{word}".encode()).decode()
    (folder / "config.json").write_text(json.dumps({"auths": {host: {"auth": auth}}}), encoding="utf-8")


@dataclass(frozen=True, slots=True)
class RealRegistry:
    """Debian's docker-registry."""

    host: str
    ca_file: Path
    storage: Path


@contextlib.contextmanager
def real(place: Path) -> Iterator[RealRegistry]:
    """Run docker-registry on a port of loopback, with TLS and one account; skip where it is not installed."""
    program = shutil.which("docker-registry")
    if program is None:
        pytest.skip("docker-registry is not installed")
    ca, own, key = certificate(place)
    (place / "htpasswd").write_text(_HTPASSWD, encoding="utf-8")
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
    config = {
        "version": 0.1,
        "log": {"level": "error", "accesslog": {"disabled": True}},
        "storage": {"filesystem": {"rootdirectory": f"{place}/storage"}},
        "http": {"addr": f"127.0.0.1:{port}", "tls": {"certificate": str(own), "key": str(key)}},
        "auth": {"htpasswd": {"realm": "test", "path": f"{place}/htpasswd"}},
    }
    (place / "config.json").write_text(json.dumps(config), encoding="utf-8")  # JSON is YAML
    with (place / "log").open("wb") as log:
        process = subprocess.Popen([program, "serve", str(place / "config.json")], stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + 30
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                break
            assert process.poll() is None, (place / "log").read_text(encoding="utf-8")
            assert time.monotonic() < deadline
            time.sleep(0.02)
        yield RealRegistry(f"localhost:{port}", ca, place / "storage")
    finally:
        process.kill()
        process.wait()


@dataclass
class SmallRegistry:
    """A registry in memory: tokens, the API for referrers, uploads in pieces; and whatever a test has it do instead."""

    host: str = ""
    account: bool = True  #: who has none is refused
    tokens: bool = True  #: else it asks for the account itself
    api: bool = True  #: it lists what refers to a manifest
    realm: str = ""  #: where tokens are given; empty: here
    blobs: dict[str, bytes] = field(default_factory=dict)
    manifests: dict[str, tuple[bytes, str]] = field(default_factory=dict)
    uploads: dict[str, bytes] = field(default_factory=dict)
    seen: list[tuple[str, str, str, str]] = field(default_factory=list)  #: method, path, authorization, range
    instead: Callable[[Request], bool] | None = None  #: answers instead, if it says so
    released: threading.Event = field(default_factory=threading.Event)  #: what stalls ends then

    def paths(self, method: str, part: str = "") -> list[str]:
        """Return which paths were asked for."""
        return [path for one, path, _, _ in self.seen if one == method and part in path]


class Request(http.server.BaseHTTPRequestHandler):
    """One request to such a registry."""

    registry: SmallRegistry

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def say(self, status: int, body: bytes = b"", **headers: str) -> bool:
        """Answer."""
        self.send_response(status)
        for name, text in {"Content_Length": str(len(body)), **headers}.items():
            self.send_header(name.replace("_", "-"), text)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)
        return True

    def answer(self) -> None:
        """Answer to whatever it is."""
        registry = self.registry
        size = int(self.headers.get("Content-Length") or 0)
        self.body = b""
        with contextlib.suppress(OSError):
            self.body = self.rfile.read(size)
        if len(self.body) < size:
            # Who sends it was killed.
            self.close_connection = True
            return
        self.auth = self.headers.get("Authorization", "")
        registry.seen.append((self.command, self.path, self.auth, self.headers.get("Range", "")))
        with contextlib.suppress(OSError):
            if registry.instead is None or not registry.instead(self):
                self.honest()

    do_GET = do_HEAD = do_POST = do_PUT = do_PATCH = answer  # noqa: N815 - the library's names

    def honest(self) -> bool:
        """Answer as a registry should."""
        registry, url = self.registry, urlsplit(self.path)
        if url.path == "/token":
            allowed = self.auth == BASIC or b"refresh_token=identity" in self.body or not registry.account
            return self.say(200, json.dumps({"token": "word"}).encode()) if allowed else self.say(401)
        if registry.account and self.auth != ("Bearer word" if registry.tokens else BASIC):
            realm = registry.realm or f"http://{registry.host}/token"
            asks = f'Bearer realm="{realm}",service="small",scope="repository:all:*"' if registry.tokens else "Basic"
            return self.say(401, WWW_Authenticate=asks)
        found = re.fullmatch(r"/v2/(?:(.+?)/(blobs/uploads|blobs|manifests|referrers)/(.*))?", url.path)
        if found is None or found[2] is None:
            return self.say(404 if found is None else 200, b"{}")
        return getattr(self, f"_{found[2].replace('/', '_')}")(found[1], found[3], parse_qs(url.query))  # type: ignore[no-any-return]

    def _blobs(self, _: str, digest: str, __: object) -> bool:
        whole = self.registry.blobs.get(digest)
        if whole is None:
            return self.say(404)
        asked = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        if asked is None:
            return self.say(200, whole)
        at = int(asked[1])
        return self.say(206, whole[at:], Content_Range=f"bytes {at}-{len(whole) - 1}/{len(whole)}")

    def _blobs_uploads(self, repository: str, name: str, query: dict[str, list[str]]) -> bool:
        registry = self.registry
        here = f"/v2/{repository}/blobs/uploads/"
        if self.command == "POST":
            if query.get("mount", [""])[0] in registry.blobs:
                return self.say(201)
            name = str(len(registry.uploads))
            registry.uploads[name] = b""
            return self.say(202, Location=f"{here}{name}?state=1")
        if name not in registry.uploads:
            return self.say(404)
        now = registry.uploads[name]
        if self.command == "GET":
            return self.say(204, Range=f"0-{max(0, len(now) - 1)}", Location=f"{here}{name}?state=2")
        if self.command == "PATCH" and int(self.headers["Content-Range"].split("-")[0]) != len(now):
            return self.say(416)
        registry.uploads[name] = now = now + self.body
        if self.command == "PATCH":
            return self.say(202, Location=f"{here}{name}?state=3")
        if digest_of(now) != query["digest"][0]:
            return self.say(400)
        registry.blobs[digest_of(now)] = registry.uploads.pop(name)
        return self.say(201)

    def _manifests(self, _: str, ref: str, __: object) -> bool:
        if self.command == "PUT":
            said = (self.body, self.headers["Content-Type"])
            self.registry.manifests[digest_of(self.body)] = self.registry.manifests[ref] = said
            return self.say(201)
        if ref not in self.registry.manifests:
            return self.say(404)
        data, media = self.registry.manifests[ref]
        return self.say(200, data, Content_Type=media)

    def _referrers(self, _: str, digest: str, __: object) -> bool:
        if not self.registry.api:
            return self.say(404)
        found = []
        for name, (data, media) in self.registry.manifests.items():
            said = json.loads(data)
            if name.startswith("sha256:") and said.get("subject", {}).get("digest") == digest:
                found.append({"mediaType": media, "digest": name, "size": len(data)})
        return self.say(200, json.dumps({"schemaVersion": 2, "mediaType": INDEX, "manifests": found}).encode())


def digest_of(data: bytes) -> str:
    """Return by what a registry knows some bytes."""
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


@contextlib.contextmanager
def small(name: str = "127.0.0.1", tls: ssl.SSLContext | None = None) -> Iterator[SmallRegistry]:
    """Run a small registry on a port of loopback."""
    registry = SmallRegistry()
    handler = type("Handler", (Request,), {"registry": registry})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.daemon_threads = False
        registry.host = f"{name}:{server.server_address[1]}"
        if tls is not None:
            server.socket = tls.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield registry
        finally:
            registry.released.set()
            server.shutdown()
            thread.join()


@contextlib.contextmanager
def proxy(to: str) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """Run a proxy that leads everybody to one place; give where it is, and what it was asked for, and as whom."""
    asked: list[tuple[str, str]] = []

    class Proxy(http.server.BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

        def do_CONNECT(self) -> None:
            asked.append((self.path, self.headers.get("Proxy-Authorization", "")))
            host, _, port = to.partition(":")
            with socket.create_connection((host, int(port))) as other:
                self.send_response(200)
                self.end_headers()
                self.wfile.flush()
                ends = {self.connection: other, other: self.connection}
                while ends:
                    ready, _, _ = select.select(list(ends), [], [], 5)
                    if not ready:
                        break
                    for one in ready:
                        piece = one.recv(1 << 16)
                        if piece:
                            ends[one].sendall(piece)
                        else:
                            return

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Proxy) as server:
        server.daemon_threads = False
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_address[1]}", asked
        finally:
            server.shutdown()
            thread.join()
