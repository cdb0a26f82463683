"""Where a bundle is in a registry: HOST[:PORT]/REPOSITORY[:TAG|@DIGEST]."""

from __future__ import annotations

import ipaddress
import re
from typing import Final
from urllib.parse import urlsplit

from msgspec import Struct

from xpucached.errors import RequestError

_REFERENCE: Final = re.compile(
    r"(?:oci://)?"
    r"(?P<host>(?:[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?(?:\.[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?)*"
    r"|\[[0-9a-fA-F:]{2,39}\])(?::[0-9]{1,5})?)"
    r"/(?P<repository>[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*(?:/[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*)*)"
    r"(?::(?P<tag>[A-Za-z0-9_][A-Za-z0-9._-]{0,127}))?"
    r"(?:@(?P<digest>sha256:[0-9a-f]{64}))?",
    re.ASCII,
)
_LONGEST: Final = 600
_LATEST: Final = "latest"
_HUB: Final = "docker.io"
_HUB_SERVER: Final = "registry-1.docker.io"
_HUB_ACCOUNTS: Final = "https://index.docker.io/v1/"
_HUB_TOKENS: Final = "auth.docker.io"


class Reference(Struct, frozen=True):
    """Where a bundle is, or shall be."""

    host: str  #: with the port, if one is named
    repository: str
    tag: str = ""
    digest: str = ""  #: of the index; it counts more than the tag

    @property
    def server(self) -> str:
        """Return who answers for that host."""
        return _HUB_SERVER if self.host == _HUB else self.host

    @property
    def ref(self) -> str:
        """Return by what the registry knows it."""
        return self.digest or self.tag

    @property
    def text(self) -> str:
        """Return it as it is written."""
        return f"{self.host}/{self.repository}" + (f"@{self.digest}" if self.digest else f":{self.tag}")

    @property
    def account_names(self) -> tuple[str, ...]:
        """Return under which names an account may be kept for it, the nearest first."""
        parts = self.repository.split("/")
        near = [f"{self.host}/{'/'.join(parts[:count])}" for count in range(len(parts), 0, -1)]
        hub = (_HUB_ACCOUNTS,) if self.host == _HUB else ()
        return (*near, self.host, f"https://{self.host}", f"https://{self.host}/v1/", f"https://{self.host}/v2/", *hub)

    @property
    def helper_name(self) -> str:
        """Return what a credential helper is asked for."""
        return _HUB_ACCOUNTS if self.host == _HUB else self.host

    def trusts_for_tokens(self, host: str) -> bool:
        """Return whether a host may be given this registry's password: itself, or one whose part it is."""
        own = urlsplit(f"//{self.server}").hostname or ""
        above = "." in host and own.endswith(f".{host}")
        return host == own or above or (self.host == _HUB and host == _HUB_TOKENS)


def parse(text: str) -> Reference:
    """Read a reference.  Raises `RequestError`."""
    found = _REFERENCE.fullmatch(text) if len(text) <= _LONGEST else None
    hint = "expected HOST[:PORT]/REPOSITORY[:TAG], such as registry.example.com/caches/app:v1"
    if found is None:
        raise RequestError(f"this is no place in a registry: {text[:80]!r}", hint=hint)
    host = found["host"].lower()
    if "." not in host and ":" not in host and host != "localhost":
        raise RequestError(f"{text[:80]!r} names no registry: {host!r} is no host's name", hint=hint)
    try:
        port = urlsplit(f"//{host}").port
        host.partition(":")[0].encode("idna")
    except ValueError:
        port = 0
    if port == 0:
        raise RequestError(f"{text[:80]!r} names no registry: {host[:80]!r} is no host's name", hint=hint)
    digest = found["digest"] or ""
    return Reference(host, found["repository"], found["tag"] or ("" if digest else _LATEST), digest)


def is_loopback(host: str) -> bool:
    """Return whether a host is this one, by its name alone."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.casefold() == "localhost"
