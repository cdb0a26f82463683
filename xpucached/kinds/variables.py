"""The variables that lead programs to caches: all that clients know of the kinds, because they load none of them."""

from __future__ import annotations

TYPE_CHECKING = False  # typing takes long to load
if TYPE_CHECKING:
    from typing import Final

CACHE_VARIABLES: Final = frozenset(
    {
        *("SYCL_CACHE_PERSISTENT", "SYCL_CACHE_DIR", "SYCL_CACHE_MAX_SIZE"),
        *("NEO_CACHE_PERSISTENT", "NEO_CACHE_DIR", "NEO_CACHE_MAX_SIZE", "NEO_CACHE_STATS"),
    }
)
"""Every variable that switches a cache on or off, or bounds it: what a kind may give, all that a client takes over."""

OURS: Final = ("SYCL_CACHE_", "NEO_CACHE_")
"""How the names of variables begin that say where and whether to cache: with a model they are ours to say."""

STEERING: Final = ("SYCL_",)
"""How the names of others begin that steer a runtime of a kind: with another value it compiles something else."""

STORE: Final = "SYCL_CACHE_DIR"
"""Names the store of the kind that models are proven by."""
