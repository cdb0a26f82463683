"""The key with which a bundle is signed: a file's, or of the environment, as build systems hand secrets over."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from msgspec.structs import replace

from xpucached import deadlines
from xpucached.bundle import members, trust
from xpucached.bundle.revocations import revocations
from xpucached.domain.bundles import HOST_KEYS, KeyReport
from xpucached.errors import AlreadyThere, Conflict, DiskError, Revoked
from xpucached.kinds.table import KINDS
from xpucached.printing import quoted
from xpucached.settings import loading

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from xpucached.bundle.layout import Descriptor
    from xpucached.bundle.members import Bundle, MemberManifest
    from xpucached.bundle.revocations import Revocations
    from xpucached.bundle.writing import LayoutWriter
    from xpucached.domain.bundles import BundleView, MakeKey

T = TypeVar("T")

PASSWORD: Final = "XPUCACHED_SIGNING_PASSWORD"  # noqa: S105 - the variable's name


def key_folders() -> tuple[Path, ...]:
    """Return where keys lie that are trusted: the host's, and this user's.  Raises `SettingsError`."""
    named = os.environ.get("XDG_CONFIG_HOME", "")
    base = Path(named) if named.startswith("/") else loading.home(os.environ) / ".config"
    return (HOST_KEYS, base / "xpucached" / "trust.d")


def of_keys(read: Callable[[Iterable[Path]], T], *more: Path) -> T:
    """Return what is read of folders of keys.  Raises `TimeoutError`: a home is another's where root keeps its HOME."""
    *_, own = folders = key_folders()
    return deadlines.ask(os.fspath(own), lambda: read(dict.fromkeys((*folders, *more))), deadlines.OF_HOMES)


def verdict(bundle: Bundle, member: MemberManifest | None = None) -> trust.SignatureVerdict:
    """Say whose trusted key signed a bundle, or a member of it."""
    found = trust.signatures(bundle)
    if not found:
        return trust.SignatureVerdict(None, "it is not signed")
    subjects = [bundle.index.digest, *([] if member is None else [member.manifest.digest])]
    return trust.verify(found, subjects, of_keys(trust.trust_store), None if member is None else _device(member))


def _device(member: MemberManifest) -> str | None:
    """Return what the device of an image is called, with its architecture; None for recipes, which are for any."""
    if (target := member.facts.target) is None:
        return None
    kind = KINDS.get(target.kind)
    return target.device if kind is None else f"{target.device} {kind.scanner.architecture(target)}"


def signed_view(bundle: Bundle) -> BundleView:
    """Return what people are shown of a bundle, with whose trusted keys signed all of it: its index, or each member."""
    whole = verdict(bundle)
    if whole.signer is not None:
        return replace(bundle.view, signer=whole.signer)
    found = [verdict(bundle, one).signer for one in bundle.members]
    signers = sorted({one for one in found if one is not None})
    if None not in found:
        return replace(bundle.view, signer=", ".join(signers))
    # Somebody may have put an image of his own beside one that was signed.
    why = f"only a part of it is signed, by {', '.join(signers)}" if signers else whole.why
    return replace(bundle.view, unsigned=why)


def refuse_revoked(bundle: Bundle, *, outward: bool = False) -> None:
    """Raise `Revoked` for a bundle that is trusted no more here; of several that signed it, one may still be trusted.

    Where that cannot be known, no key counts here, and what shall go ``outward`` is refused: `Conflict`.
    """
    known = of_keys(revocations)
    if known.doubt and outward:
        raise doubtful(known)
    own = {bundle.index.digest, *(one.manifest.digest for one in bundle.members)}
    signed = [trust.named_by(one) for one in trust.signatures(bundle)] if known.digests else []
    if known.digests & own or (signed and all(known.digests & one for one in signed)):
        found = sorted(known.digests & own.union(*signed))
        hint = f"in a file named revoked in {' or '.join(map(quoted, map(str, key_folders())))}"
        raise Revoked(f"{bundle.layout.path} is revoked here: {', '.join(found)}", hint=f"{found[0]} stands {hint}")


def doubtful(known: Revocations) -> Conflict:
    """Return the refusal of whom it concerns that it is not known what is revoked."""
    return Conflict(f"{known.doubt}; so it may be a part of this", hint="correct the file, or chmod go-w")


def signing_key(given: str | None) -> trust.SigningKey | None:
    """Read the key that was given, before anything is done that it is for.  Raises `RequestError` and others."""
    return trust.private_key(given, _password()) if given else None


def sign_all(layout: LayoutWriter, made: list[Descriptor], key: trust.SigningKey | None) -> None:
    """Write the index, and if there is a key, signatures over all of it."""
    top = members.put_index(layout, made)
    if key is not None:
        members.put_index(layout, made, trust.sign(layout, [top, *made], key))


def _password() -> bytes | None:
    text = os.environ.get(PASSWORD)
    return os.fsencode(text) if text else None


def keygen(order: MakeKey) -> KeyReport:
    """Make a key; see `MakeKey`."""
    try:
        hint = trust.keygen(order.name, _password())
    except FileExistsError as error:
        raise AlreadyThere(f"{error.filename} is there already") from error
    except OSError as error:
        raise DiskError(f"{order.name}: {error.strerror}") from error
    return KeyReport(Path(f"{order.name}.key"), Path(f"{order.name}.pub"), hint)
