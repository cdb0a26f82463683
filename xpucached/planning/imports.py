"""Decide: what of a bundle is taken in as it is, what is compiled here, and what is left.  Pure."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from xpucached.domain.bundles import BundleFacts, CompilerLibrary
    from xpucached.domain.targets import Target


class Taking(StrEnum):
    """What becomes of compiled programs."""

    PUBLISH = "publish"  #: as they are
    REBUILD = "rebuild"  #: from their recipes
    LEAVE = "leave"  #: nothing here could use them


class Taken(Struct, frozen=True):
    """What becomes of an image, and why not more."""

    taking: Taking
    why: str = ""


def judge(
    facts: BundleFacts,
    signer: str | None,
    unsigned: str,
    targets: Collection[Target],
    compiler: Sequence[CompilerLibrary],
    isa: Mapping[Target, str],
    *,
    allowed: bool = True,
) -> Taken:
    """Decide about an image.

    ``signer`` is the trusted key's name, or None, and then ``unsigned`` says why; ``targets``, ``compiler`` and ``isa``
    are what this host has; ``allowed`` is whether programs may be taken in at all.  What is unknown is not equal.
    """
    target = facts.target
    if target is None or not any((one.kind, one.family) == (target.kind, target.family) for one in targets):
        return Taken(Taking.LEAVE, "no device of this host is of its family")
    if target not in targets:
        same = any(one.lineage == target.lineage for one in targets)
        return Taken(Taking.REBUILD, "the driver here is another one" if same else "the device here is another one")
    if not allowed:
        return Taken(Taking.REBUILD, "programs shall not be taken in")
    if signer is None:
        return Taken(Taking.REBUILD, unsigned)
    if not facts.compiler or not compiler:
        return Taken(Taking.REBUILD, "by which libraries it was compiled is not known")
    if tuple(facts.compiler) != tuple(compiler):
        return Taken(Taking.REBUILD, "the compiler here is another one")
    if not facts.isa or facts.isa != isa.get(target, ""):
        return Taken(Taking.REBUILD, "the processor's instructions here are others, or not known")
    if facts.switches:
        return Taken(Taking.REBUILD, "it was compiled while variables were set that change code")
    return Taken(Taking.PUBLISH)
