"""Bundles: entries and recipes that travel between hosts, what is asked of them, and what came of it.  Pure."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Literal

from msgspec import Struct, field

from xpucached.domain.names import EntryKey, KindName
from xpucached.domain.targets import Target

PREFIX = "org.xpucached"
"""What the names of our labels and annotations begin with."""

DOMAIN = ".".join(reversed(PREFIX.split(".")))
"""The same as a domain, as others name things."""

SCHEMA = 1
"""The version of `BundleFacts`; another one is refused."""


HOST_KEYS = Path("/etc/xpucached/trust.d")
"""Where keys lie that all users of this host trust."""


class BundleContent(StrEnum):
    """What a member of a bundle holds."""

    BINARIES = "binaries"  #: compiled programs of one target, as their runtime keeps them
    RECIPES = "recipes"  #: what programs are compiled from, for any driver


class Compression(StrEnum):
    """How a layer is compressed."""

    ZSTD = "zstd"
    GZIP = "gzip"


class CompilerLibrary(Struct, frozen=True, order=True):
    """One library that decides about the code that is compiled."""

    name: str  #: without a version
    id: str  #: ``build-id:HEX``, or ``sha256:HEX`` of the file where it has none


class BundleFacts(Struct, frozen=True):
    """What a member of a bundle says of itself; no name of a host or user, no path and no time."""

    content: BundleContent
    entries: int
    bytes: int  #: sum of the files, uncompressed
    diff_id: str  #: ``sha256:HEX`` of the uncompressed layer: equal for equal content, whatever compressed it
    schema: int = SCHEMA
    made_by: str = ""  #: the version of xpucached
    kind: KindName | None = None  #: of binaries
    format: str = ""  #: of its files, as the kind names it; of binaries
    target: Target | None = None  #: of binaries
    compiler: tuple[CompilerLibrary, ...] = ()  #: empty: not known
    isa: str = ""  #: for which instruction set; empty: not known
    switches: Mapping[str, str] = field(default_factory=dict)  #: variables that were set and change code
    models: tuple[str, ...] = ()  #: only where that was wished for


class RecipeLine(Struct, frozen=True, order=True):
    """One recipe of a bundle, without its input."""

    kind: KindName
    family: str  #: how programs reach the device; see `Target.family`
    at: str  #: what stays of the entry's key whatever compiles it
    input: str  #: SHA-256 of what it is compiled from
    size: int  #: bytes of that
    options: bytes = b""
    facts: Mapping[str, str] = field(default_factory=dict)  #: what only its kind reads


class BundleMember(Struct, frozen=True):
    """A member of a bundle: what it says, and what it takes."""

    digest: str  #: of its manifest
    size: int  #: bytes of its layer, compressed
    compression: Compression
    facts: BundleFacts


class BundleView(Struct, frozen=True):
    """What a bundle holds."""

    path: Path
    digest: str  #: of its index
    members: tuple[BundleMember, ...]
    signer: str | None = None  #: the trusted key that signed it
    unsigned: str = ""  #: why no trusted key did
    checked: bool = False  #: every byte of it was read and is what it should be


# -- what is asked ----------------------------------------------------------------------------------------------------


class ExportBundle(Struct, frozen=True, tag="export", tag_field="order"):
    """Write entries and their recipes into a bundle."""

    dest: Path
    store: Path | None = None
    kind: str | None = None
    model: str | None = None
    driver: str | None = None
    device: str | None = None
    recipes_only: bool = False
    compression: Compression | None = None  #: None: zstd where it is installed, else gzip
    allow_switches: bool = False
    with_names: bool = False
    driver_root: Path | None = None  #: the driver that compiled the entries, where it is not the installed one
    pretended: str | None = None  #: the GPU that it pretended
    sign: str | None = None  #: a key as text, or the path of its file
    made_here: bool = False  #: only programs that were compiled from recipes on this host, for its driver; no recipes


class InspectBundle(Struct, frozen=True, tag="inspect", tag_field="order"):
    """Say what is in a bundle."""

    source: Path
    deep: bool = False  #: read and check all of it


class DiffBundles(Struct, frozen=True, tag="diff", tag_field="order"):
    """Compare two bundles by content, whatever compressed and signed them."""

    sources: tuple[Path, Path]


class Binaries(StrEnum):
    """Whether compiled programs are taken in."""

    NEVER = "never"  #: recipes only
    TRUSTED = "trusted"  #: where a trusted key signed them and all fits, else recipes
    REQUIRE = "require"  #: refused where they are not


class ImportBundle(Struct, frozen=True, tag="import", tag_field="order"):
    """Take entries into stores of this host: as they are where that is safe, else compiled here from their recipes."""

    source: Path
    into: Path | None = None  #: a store of its own; None: those that the daemon manages
    binaries: Binaries = Binaries.TRUSTED
    dry_run: bool = False
    unattended: bool = False  #: nothing unsigned is taken, not even recipes
    seconds: float | None = (
        None  #: after so many of writing no further program, of compiling no further recipe is begun
    )
    first: int = 0  #: so many recipes are passed over: an import whose time was up has seen to them


class ReplayBundle(Struct, frozen=True, tag="replay", tag_field="order"):
    """Compile the recipes of a bundle into a store, for any driver and device, without a daemon."""

    source: Path
    into: Path
    shard: tuple[int, int] = (0, 1)  #: which part, of how many
    driver_root: Path | None = None
    device: str | None = None
    driver_cache: Path | None = None
    keep_going: bool = False  #: what a compiler refuses is no failure
    threads: int = 0  #: that compile at a time; 0: as many as there are processors for us
    cluster: str = ""  #: address of a scheduler whose workers do it in parts; empty: it is done here


class MergeBundles(Struct, frozen=True, tag="merge", tag_field="order"):
    """Make one bundle of several."""

    sources: tuple[Path, ...]
    dest: Path
    compression: Compression | None = None
    sign: str | None = None


class MakeKey(Struct, frozen=True, tag="keygen", tag_field="order"):
    """Make a key to sign with."""

    name: Path


class RegistryAccess(Struct, frozen=True):
    """How a registry is reached."""

    ca_file: Path | None = None  #: certificates of authorities that are trusted besides the system's
    plain_http: bool = False  #: without TLS
    token_host: str = ""  #: a host that may hear the account because the registry sends there for tokens
    patience: float = 60.0  #: seconds that it may be silent


class PushBundle(Struct, frozen=True, tag="push", tag_field="order"):
    """Copy a bundle into a registry."""

    source: Path
    reference: str
    access: RegistryAccess = RegistryAccess()
    mount_from: str = ""  #: a repository of the same registry that may have some of it
    if_changed: bool = False  #: nothing is sent where the tag names this bundle already, and the same keys signed it


class PullBundle(Struct, frozen=True, tag="pull", tag_field="order"):
    """Copy a bundle from a registry."""

    reference: str
    dest: Path
    access: RegistryAccess = RegistryAccess()
    signed: bool = False  #: only what trusted keys have signed, all of it; seen before any layer comes


class FetchBundles(Struct, frozen=True, tag="fetch", tag_field="order"):
    """Copy the bundles that the configuration names from their registries into the folder that it names."""

    system: bool = False  #: the host's configuration, and not this user's


class SendBundle(Struct, frozen=True, tag="send", tag_field="order"):
    """Push what this host compiled to where this user's configuration says."""


BundleOrder = (
    ExportBundle
    | InspectBundle
    | DiffBundles
    | ImportBundle
    | ReplayBundle
    | MergeBundles
    | MakeKey
    | PushBundle
    | PullBundle
    | FetchBundles
    | SendBundle
)


# -- what came of it --------------------------------------------------------------------------------------------------


class ExportReport(Struct, frozen=True, tag="export", tag_field="kind"):
    """What was written."""

    view: BundleView
    skipped: Mapping[str, int] = field(default_factory=dict)  #: entries that were left out, by reason
    recipes: int = 0
    notes: tuple[str, ...] = ()


class InspectReport(Struct, frozen=True, tag="inspect", tag_field="kind"):
    """What a bundle holds."""

    view: BundleView


class MemberChange(Struct, frozen=True):
    """In what a member of one bundle differs from the same one of another."""

    content: BundleContent
    target: Target | None
    change: Literal["added", "removed", "changed"]
    detail: str
    added: int = 0  #: entries that only the second has
    removed: int = 0  #: entries that only the first has
    changed: int = 0  #: entries that both have, with other bytes


class DiffReport(Struct, frozen=True, tag="diff", tag_field="kind"):
    """In what two bundles differ; nothing if they hold the same."""

    changes: tuple[MemberChange, ...]


class MadeEntry(Struct, frozen=True):
    """An entry that came into a store."""

    kind: KindName
    store: Path
    key: EntryKey
    digest: str  #: of the program, as in `Entry.digest`
    family: str
    seconds: float = 0.0  #: that compiling took
    input_size: int = 0
    signer: str = ""  #: the trusted key that signed that member of the bundle
    signing_key: str = ""  #: its digest


class BundleSource(Struct, frozen=True):
    """Of whom entries of a bundle were taken, and what takes them out again when it is revoked."""

    signer: str = ""
    signing_key: str = ""
    digests: tuple[str, ...] = ()  #: of what was signed together


class RecipeFailure(Struct, frozen=True):
    """A recipe of which nothing came."""

    kind: KindName
    key: EntryKey
    why: str


class MemberTaken(Struct, frozen=True):
    """What becomes of an image."""

    target: Target | None
    taking: str
    why: str
    entries: int


class ImportReport(Struct, frozen=True, tag="import", tag_field="kind"):
    """What was taken in, or would be."""

    view: BundleView
    images: tuple[MemberTaken, ...]
    dry_run: bool = False
    published: int = 0
    rebuilt: int = 0
    present: int = 0
    failures: tuple[RecipeFailure, ...] = ()
    skipped: Mapping[str, int] = field(default_factory=dict)
    made: tuple[MadeEntry, ...] = ()  #: what came in as it was; then what was compiled
    next: int | None = None  #: its time was up: with which recipe to go on; None: all was seen to
    sources: tuple[BundleSource, ...] = ()  #: of whom that was taken


class BundleReplayReport(Struct, frozen=True, tag="replay", tag_field="kind"):
    """What was compiled."""

    targets: tuple[Target, ...]
    into: Path
    rebuilt: int
    present: int
    failures: tuple[RecipeFailure, ...] = ()
    keep_going: bool = False
    workers: int = 0  #: of a cluster that did it, at most at a time; 0: it was done here


class KeyReport(Struct, frozen=True, tag="keygen", tag_field="kind"):
    """A new key."""

    secret: Path
    public: Path
    hint: str  #: by which signatures name it


class PushReport(Struct, frozen=True, tag="push", tag_field="kind"):
    """What a registry has now."""

    reference: str
    digest: str  #: of the index; empty: there was nothing to push
    sent: int  #: blobs that were sent
    mounted: int  #: blobs that another repository had
    present: int  #: blobs that were there
    bytes: int  #: that were sent
    signatures: int
    skipped: Mapping[str, int] = field(default_factory=dict)  #: entries that `SendBundle` left out, by reason


class PullReport(Struct, frozen=True, tag="pull", tag_field="kind"):
    """What came from a registry."""

    view: BundleView
    reference: str
    fetched: int  #: bytes that came
    kept: int  #: bytes that an earlier one, which did not come to its end, had got
    signatures: int


class FetchedBundle(Struct, frozen=True):
    """A bundle that the configuration names."""

    reference: str
    digest: str = ""  #: of the index; empty if it is not known
    path: Path | None = None  #: where it is; None if it could not be had
    new: bool = False  #: it was not there before
    error: str = ""  #: why it could not be had, or not be looked for


class FetchReport(Struct, frozen=True, tag="fetch", tag_field="kind"):
    """What lies in the folder for bundles now."""

    folder: Path
    bundles: tuple[FetchedBundle, ...]


BundleReport = (
    ExportReport
    | InspectReport
    | DiffReport
    | ImportReport
    | BundleReplayReport
    | KeyReport
    | PushReport
    | PullReport
    | FetchReport
)
