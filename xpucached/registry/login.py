"""How a registry is told who we are: its own host, or one for tokens that may hear it; nobody else."""

from __future__ import annotations

import re
from http import HTTPStatus
from typing import TYPE_CHECKING, Final
from urllib.parse import urlencode, urlsplit

from xpucached import messages
from xpucached.errors import RegistryDenied, RegistryError
from xpucached.registry.reference import is_loopback
from xpucached.registry.retrying import RETRIED, Interrupted, NoTls, Retries
from xpucached.registry.transport import address

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from urllib.parse import SplitResult

    from xpucached.registry.accounts import Account
    from xpucached.registry.reference import Reference
    from xpucached.registry.transport import RegistryAnswer, Transport

_LARGEST: Final = 256 << 10
_TOKEN: Final = re.compile(r"[\x21-\x7e]{1,65536}")
_PARAMETER: Final = re.compile(r'(\w{1,20})="([^"]{0,2000})"', re.ASCII)
_DENIED: Final = frozenset({HTTPStatus.BAD_REQUEST, HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN})


class Login:
    """What is said to a registry with each request, once it has asked for it."""

    def __init__(
        self,
        where: Reference,
        transport: Transport,
        account: Callable[[], Account | None],
        scopes: Sequence[str],
        token_host: str = "",
    ) -> None:
        """``scopes`` is what is asked for, whatever the registry asks us to; ``token_host`` may hear the account."""
        self._where = where
        self._transport = transport
        self._find = account
        self._found: Account | None = None
        self._asked = False
        self._scopes = tuple(scopes)
        self._token_host = token_host
        self.headers: dict[str, str] = {}
        self.base: SplitResult = urlsplit(f"{'http' if transport.plain_http else 'https'}://{where.server}")

    def begin(self) -> None:
        """Find out how the registry is talked to.  Raises `RegistryError` and `RegistryDenied`."""
        tries = Retries()
        while True:
            try:
                with self._transport.ask("GET", urlsplit(f"{self.base.geturl()}/v2/"), {}) as answer:
                    self._handle_answer(answer)
                    break
            except NoTls as error:
                if not is_loopback(self.base.hostname or ""):
                    hint = "--plain-http, if its answers may be read and changed by all on the way"
                    raise RegistryError(f"{self._where.host} does not speak TLS", hint=hint) from error
                self.base = self.base._replace(scheme="http")
            except Interrupted as error:
                tries.failed(error)

    def _handle_answer(self, answer: RegistryAnswer) -> None:
        if answer.status == HTTPStatus.UNAUTHORIZED:
            self.answer(answer.headers("WWW-Authenticate"))
        elif answer.status in RETRIED:
            raise Interrupted(f"{self._where.host} answered {answer.status}", answer.header("Retry-After"))
        elif answer.status != HTTPStatus.OK:
            raise RegistryError(f"{self._where.host} is no registry: it answered {answer.status} to /v2/")

    def answer(self, challenges: Sequence[str]) -> None:
        """Answer to the question who we are.  Raises `RegistryDenied`, `Interrupted` and others."""
        offered: dict[str, dict[str, str]] = {}
        for one in challenges:
            scheme, _, rest = one.partition(" ")
            offered.setdefault(scheme.casefold(), dict(_PARAMETER.findall(rest)))
        if "bearer" in offered:
            self.headers = {"Authorization": f"Bearer {self._token(offered['bearer'])}"}
        elif "basic" in offered:
            account = self._account()
            if account is None or account.is_token:
                raise self._unknown()
            self._safe(self.base)
            self.headers = {"Authorization": account.basic}
        else:
            schemes = ", ".join(offered)[:80] or "none"
            raise RegistryError(f"{self._where.host} asks who we are in ways that are not known: {schemes}")

    def refused(self, said: str, host: str) -> RegistryDenied:
        """Return the refusal of a request."""
        if host != self.base.hostname:
            return RegistryDenied(f"{host}, to which {self._where.host} sends, refuses that{said}")
        if self._asked and self._found is None:
            return self._unknown(said)
        who = f" as {self._found.name}" if self._found is not None and self._found.name else ""
        return RegistryDenied(f"{self._where.host} refuses that{who}{said}", hint=self._how())

    def _account(self) -> Account | None:
        if not self._asked:
            self._asked, self._found = True, self._find()
        return self._found

    def _how(self) -> str:
        return f"docker login {self._where.host}, or podman login {self._where.host}"

    def _unknown(self, said: str = "") -> RegistryDenied:
        return RegistryDenied(
            f"{self._where.host} wants an account, and none for it is known here{said}", hint=self._how()
        )

    def _safe(self, url: SplitResult) -> None:
        """See that a secret is not sent where all can read it."""
        here = is_loopback(url.hostname or "")
        # Any user of this host may listen on a port that a registry with TLS has left.
        if url.scheme != "https" and not (here and self._transport.plain_http):
            hint = "--plain-http, if no other user of this host can listen there" if here else ""
            raise RegistryDenied(f"{url.hostname} wants an account without TLS: it is not told", hint=hint)

    def _token(self, said: dict[str, str]) -> str:
        url = address(said.get("realm", ""), self.base, relative=False)
        host = url.hostname or ""
        if not host or url.username is not None:
            raise RegistryError(f"{self._where.host} does not say who gives tokens for it")
        account = self._account()
        if account is not None:
            if not self._where.trusts_for_tokens(host) and host != self._token_host:
                message = f"{self._where.host} wants its account to be told to another host, {host}"
                raise RegistryDenied(message, hint=f"if that host is right: --token-host {host}")
            self._safe(url)
        query = [("service", said.get("service", "")), *(("scope", one) for one in self._scopes)]
        try:
            if account is not None and account.is_token:
                more = [("grant_type", "refresh_token"), ("client_id", "xpucached"), ("refresh_token", account.secret)]
                more += [("service", said.get("service", "")), ("scope", " ".join(self._scopes))]
                headers = {"Content-Type": "application/x-www-form-urlencoded"}
                answer = self._transport.ask("POST", url, headers, urlencode(more).encode())
            else:
                url = url._replace(query="&".join(filter(None, (url.query, urlencode(query)))))
                answer = self._transport.ask("GET", url, {} if account is None else {"Authorization": account.basic})
        except NoTls as error:
            # It is not the registry, which might be asked without.
            raise RegistryError(f"{host}, which gives tokens for {self._where.host}, does not speak TLS") from error
        with answer:
            return self._given(answer, host)

    def _given(self, answer: RegistryAnswer, host: str) -> str:
        if answer.status in _DENIED:
            raise self.refused(f": {host} gives no token", self.base.hostname or "")
        if answer.status != HTTPStatus.OK:
            raise Interrupted(
                f"{host} answered {answer.status} to the request for a token", answer.header("Retry-After")
            )
        try:
            told = messages.members(messages.parse(answer.body(_LARGEST), largest=_LARGEST))
        except messages.BadMessage as error:
            raise RegistryError(f"{host} gave a token that cannot be read: {error}") from None
        token = told.get("token") or told.get("access_token")
        if not isinstance(token, str) or _TOKEN.fullmatch(token) is None:
            raise RegistryError(f"{host} gave no token")
        return token
