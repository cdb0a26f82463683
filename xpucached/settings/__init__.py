"""Door: configuration and model files; with `host` the only reader of the outside.

One TOML file, and ``XPUCACHED_SECTION_KEY`` variables over it.  What is wrong is refused with its file, its line and
what was expected, so whoever holds a `Settings` needs no checks of his own.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct, field

from xpucached.domain.bundles import HOST_KEYS
from xpucached.domain.names import KindName
from xpucached.domain.plans import Policy
from xpucached.domain.throttling import ThrottlePolicy
from xpucached.settings.sections import Bundles, Driver, Log, Metrics, Paths, Schedule, Stores, WatchSection, Workers


class Settings(Struct, frozen=True):
    """The configuration in effect: its sections, and what is known besides."""

    file: Path  #: the file that was read, or that would be if it were there
    paths: Paths
    stores: Stores
    driver: Driver
    policy: Policy
    schedule: Schedule
    throttle: ThrottlePolicy
    watch: WatchSection
    workers: Workers
    bundles: Bundles
    metrics: Metrics
    log: Log
    host_models: Path | None = None
    """Where an administrator says what models users have; None if that is not for us."""
    digest: str = ""
    """Of what stood in the file when it was read; empty if there was none."""
    shown: Mapping[str, str] = field(default_factory=dict)
    """Every key as ``section.key``, with its value and in brackets where that comes from."""
    unknown_users: Mapping[str, str] = field(default_factory=dict)
    """Of the host's, whose limits mean nothing: users whom nobody knew, and what is said of each."""

    @property
    def key_folders(self) -> tuple[Path, ...]:
        """Where keys lie whose bundles count here, and what is revoked: the host's, and our own."""
        return tuple(dict.fromkeys((HOST_KEYS, self.file.parent / HOST_KEYS.name)))

    def managed(self, kind: KindName) -> Path:
        """Return where our own store of a kind is."""
        return self.paths.cache / kind
