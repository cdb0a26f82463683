"""What we refuse, with its stable code and exit status.  Pure.

Each docstring is the manual's sentence for that code.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, ClassVar, Final

if TYPE_CHECKING:
    from collections.abc import Iterable


class XpucachedError(Exception):
    """Something unexpected happened inside xpucached; the reference in the message stands in the daemon's log, too."""

    code: ClassVar[str] = "internal"
    exit: ClassVar[int] = 70

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class SettingsError(XpucachedError):
    """The configuration or a model file cannot be used as it is written."""

    code = "bad-settings"
    exit = 78


class QuotaError(SettingsError):
    """A limit of the configuration is below what the registered models need: what is warm would have to go again."""

    code = "quota-too-small"


class HostError(XpucachedError):
    """There is nothing on this host to warm a model on."""

    code = "no-gpu"
    exit = 69


class NotPrepared(XpucachedError):
    """The packages of a driver that is not installed yet cannot be unpacked, so nothing is compiled for it."""

    code = "not-prepared"
    exit = 69


class CatalogError(XpucachedError):
    """The catalog cannot be opened, or a newer xpucached wrote it."""

    code = "catalog"
    exit = 74


class RunningError(XpucachedError):
    """Another daemon already works on this state directory or socket."""

    code = "already-running"
    exit = 73


class Unavailable(XpucachedError):
    """No daemon answers on the socket."""

    code = "unavailable"
    exit = 69


class Restarted(Unavailable):
    """The daemon ended in the midst of what was asked: what it had done before stays done, of the rest nobody knows."""

    code = "restarted"


class Untrusted(XpucachedError):
    """What is at the socket's path may be another user's, so nothing was asked there."""

    code = "untrusted"
    exit = 77


class RequestError(XpucachedError):
    """The request is malformed."""

    code = "bad-request"
    exit = 64


class NotFound(RequestError):
    """There is no such model, entry, job or path."""

    code = "not-found"
    exit = 66


class Conflict(RequestError):
    """The request does not fit what is there (a name that is taken, a model that a file declares)."""

    code = "conflict"
    exit = 65


class Denied(RequestError):
    """The caller may not do this."""

    code = "denied"
    exit = 77


class Unconfirmed(XpucachedError):
    """A SYCL runtime names the device otherwise than the driver: nothing that was rebuilt would be found."""

    code = "unconfirmed"
    exit = 76


class Busy(XpucachedError):
    """The daemon has too much to do for this client just now; try again."""

    code = "busy"
    exit = 75


class TooLarge(XpucachedError):
    """A daemon's answer has more in it than is read of it: of others' daemons that is less than of one's own."""

    code = "too-large"
    exit = 65


class BadBundle(XpucachedError):
    """A bundle is damaged, or not made as bundles are: nothing of it is used."""

    code = "bad-bundle"
    exit = 65


class WrongHost(XpucachedError):
    """Nothing in the bundle is for a device of this host."""

    code = "wrong-host"
    exit = 65


class Unsigned(XpucachedError):
    """Compiled programs were required, and none is both signed by a trusted key and for exactly this driver."""

    code = "unsigned"
    exit = 77


class Revoked(XpucachedError):
    """A bundle is revoked here, or who signed it: it is neither taken in nor given out."""

    code = "revoked"
    exit = 77


class RegistryError(XpucachedError):
    """A registry cannot be reached, does not answer as registries do, or breaks off again and again."""

    code = "registry"
    exit = 69


class RegistryDenied(XpucachedError):
    """A registry wants an account that is not known here, refuses the one that is, or may not be given it."""

    code = "registry-denied"
    exit = 77


class AlreadyThere(XpucachedError):
    """What was to be made is there already; it stays as it is."""

    code = "already-there"
    exit = 73


class MissingExtra(XpucachedError):
    """A library is not installed that only this command needs."""

    code = "missing-extra"
    exit = 69


class NoCluster(XpucachedError):
    """The cluster that shall compile does not answer, has no workers, or they cannot work together."""

    code = "no-cluster"
    exit = 69


class DiskError(XpucachedError):
    """A file or directory of this command cannot be read or written."""

    code = "disk"
    exit = 74


class RunFailed(XpucachedError):
    """A job ended, but not all is well: a model is cold, an entry not rebuilt, damage is left, something not read."""

    code = "run-failed"
    exit = 1


_COMPARED: Final = 2000
"""Names that a mistyped one is compared with: each takes some microseconds, and others wait meanwhile."""
_LONGEST: Final = 200


def guess(typed: str, known: Iterable[str], most: int = 1) -> str:
    """Ask whether one of the names that are known was meant; gives "" if none is near."""
    from difflib import get_close_matches  # noqa: PLC0415 - only who mistypes has to wait for it

    near = get_close_matches(typed[:_LONGEST], sorted(islice(known, _COMPARED)), n=most)
    return f"did you mean {' or '.join(near)}?" if near else ""


def suggest(typed: str, known: Iterable[str], hint: str) -> str:
    """Put the nearest of the names that are known before a hint, if any is near."""
    near = guess(typed, known, most=3)
    return f"{near} {hint}" if near else hint


def no_model(name: str, known: Iterable[str]) -> NotFound:
    """Return the refusal of a model that is not registered; ``known`` are those that are."""
    return NotFound(f"no model {name}", hint=suggest(name, known, "see: xpucachectl model list"))
