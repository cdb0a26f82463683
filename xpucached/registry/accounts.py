"""Accounts for registries, where docker and podman keep them: in files, or with a credential helper."""

from __future__ import annotations

import base64
import functools
import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from xpucached import deadlines, messages, reading, state_files
from xpucached.errors import RegistryDenied
from xpucached.processes import credential_helper

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from xpucached.messages import Json
    from xpucached.registry.reference import Reference

_WRITABLE: Final = stat.S_IWGRP | stat.S_IWOTH
_LARGEST: Final = 1 << 20
_LONGEST: Final = 32 << 10
_TOKEN_USER: Final = "<token>"  # noqa: S105 - by this name a helper says that it gives an identity token
_NOT_FOUND: Final = b"credentials not found"


class Account(Struct, frozen=True):
    """Who we are at a registry."""

    name: str
    secret: str
    is_token: bool = False  #: the secret is an identity token, which is changed for a short-lived one

    @property
    def basic(self) -> str:
        """Return it as HTTP's basic scheme writes it."""
        return "Basic " + base64.b64encode(f"{self.name}:{self.secret}".encode()).decode()


def _files(environ: Mapping[str, str]) -> Iterator[Path]:
    home = Path(environ.get("HOME") or "/")
    if named := environ.get("REGISTRY_AUTH_FILE"):
        yield Path(named)
    if named := environ.get("DOCKER_CONFIG"):
        yield Path(named, "config.json")
    if run := environ.get("XDG_RUNTIME_DIR"):
        yield Path(run, "containers/auth.json")
    yield Path(environ.get("XDG_CONFIG_HOME") or home / ".config", "containers/auth.json")
    if not environ.get("DOCKER_CONFIG"):
        yield home / ".docker/config.json"


def account(of: Reference, environ: Mapping[str, str]) -> Account | None:
    """Find the account for a place in a registry; None if there is none.  Raises `RegistryDenied`."""
    for path in _files(environ):
        try:
            # Where root keeps its HOME, a home is another's.
            said = deadlines.ask(os.fspath(path), functools.partial(_read, path), deadlines.OF_HOMES)
        except TimeoutError as error:
            raise RegistryDenied(f"{path} with accounts for registries cannot be read: {error.strerror}") from error
        if said is not None and (found := _in_file(path, said, of)) is not None:
            return found
    return None


def _read(path: Path) -> dict[str, Json] | None:
    try:
        file = state_files.stream(reading.opened(path))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise RegistryDenied(f"{path} with accounts for registries cannot be read: {error.strerror}") from error
    with file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise RegistryDenied(f"{path} is no file: accounts for registries are not read from there")
        if status.st_uid not in {0, os.geteuid()} or status.st_mode & _WRITABLE:
            hint = "somebody else could name a program in it that we start: give it to yourself, and chmod 600"
            raise RegistryDenied(f"{path} belongs to somebody else, or others may write to it", hint=hint)
        data = file.read(_LARGEST + 1)
    try:
        return messages.members(messages.parse(data, largest=_LARGEST))
    except messages.BadMessage as error:
        raise RegistryDenied(f"{path} with accounts for registries cannot be read: {error}") from None


def _in_file(path: Path, said: Mapping[str, Json], of: Reference) -> Account | None:
    helpers, auths = said.get("credHelpers"), said.get("auths")
    helper = helpers.get(of.host) if isinstance(helpers, dict) else None
    for name in (helper, said.get("credsStore")):
        if isinstance(name, str) and name and (found := _asked(path, name, of)) is not None:
            return found
    if not isinstance(auths, dict):
        return None
    for key in of.account_names:
        one = auths.get(key)
        if isinstance(one, dict) and (found := _written(path, key, one)) is not None:
            return found
    return None


def _written(path: Path, key: str, one: Mapping[str, Json]) -> Account | None:
    token, auth = one.get("identitytoken"), one.get("auth")
    if isinstance(token, str) and token:
        return _checked(Account("", token, is_token=True), f"{path}, {key}")
    if not isinstance(auth, str) or not auth:
        return None
    try:
        name, colon, secret = base64.b64decode(auth, validate=True).decode().partition(":")
    except ValueError:
        name, colon, secret = "", "", ""
    if not colon:
        raise RegistryDenied(f"{path}: what stands there for {key} is no account", hint=f"docker login {key}")
    return _checked(Account(name, secret.rstrip("\0")), f"{path}, {key}")


def _asked(path: Path, name: str, of: Reference) -> Account | None:
    """Ask a credential helper; None if it knows no account for that server."""
    who = f"docker-credential-{name[:64]}"
    try:
        ended = credential_helper.ask(name, of.helper_name)
    except OSError as error:
        raise RegistryDenied(f"{who} cannot be started: {error.strerror}") from error
    if ended is None:
        raise RegistryDenied(f"{path} names {who}, which is not in PATH", hint="install it, or take it out of the file")
    if ended.status != 0:
        if ended.status is not None and _NOT_FOUND in (ended.output + ended.complaint).lower():
            return None
        raise RegistryDenied(f"{who} gave no account for {of.helper_name}: it {ended.words}")
    try:
        told = messages.members(messages.parse(ended.output, largest=_LARGEST))
        user = messages.text(told, "Username", longest=_LONGEST)
        secret = messages.text(told, "Secret", longest=_LONGEST)
    except messages.BadMessage as error:
        raise RegistryDenied(f"what {who} said cannot be read: {error}") from None
    return _checked(Account("" if user == _TOKEN_USER else user, secret, user == _TOKEN_USER), who)


def _checked(found: Account, where: str) -> Account:
    """Refuse what no header can carry, without telling what it is."""
    if ":" in found.name or any(ord(one) < ord(" ") for one in found.name + found.secret):
        raise RegistryDenied(f"the account of {where} has characters that none has")
    return found
