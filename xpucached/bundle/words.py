"""The media types, names and limits of the format.  Pure."""

from __future__ import annotations

from typing import Final

from xpucached.domain.bundles import PREFIX

INDEX: Final = "application/vnd.oci.image.index.v1+json"
MANIFEST: Final = "application/vnd.oci.image.manifest.v1+json"
CONFIG: Final = "application/vnd.oci.image.config.v1+json"
LAYER: Final = "application/vnd.oci.image.layer.v1.tar"
"""Of an image's layer, without what says how it is compressed."""

RECIPES: Final = "application/vnd.xpucached.recipes.v1"
RECIPES_CONFIG: Final = "application/vnd.xpucached.recipes.config.v1+json"
RECIPES_LAYER: Final = "application/vnd.xpucached.recipes.layer.v1.tar"

FACTS: Final = f"{PREFIX}.bundle"
"""The label of an image that holds its facts."""

CONTENT: Final = f"{PREFIX}.content"
REF_NAME: Final = "org.opencontainers.image.ref.name"

LINES: Final = "recipes.jsonl"
INPUTS: Final = "spirv"
"""The folder of what recipes are compiled from, each named by its SHA-256."""

LARGEST_JSON: Final = 4 << 20
"""Bytes of a manifest, a config, an index."""

LARGEST_BLOB: Final = 1 << 30
"""Bytes of a layer, compressed."""

LARGEST_BUNDLE: Final = 8 << 30
"""Bytes of all layers of a bundle, compressed."""

LARGEST_TOLD: Final = 32 << 20
"""Bytes of all that a registry gives of a bundle but layers: manifests, configs, signatures."""

LARGEST_FILE: Final = 64 << 20
"""Bytes of one file in a layer."""

LARGEST_LAYER: Final = 8 << 30
"""Bytes of a layer, uncompressed."""

EXPANSION: Final = 100
"""So many times its compressed size, and a MiB, a layer may have at most; real ones have 9 to 14 times."""

MOST_FILES: Final = 400_000
"""Files and folders in one layer."""

MOST_MEMBERS: Final = 64
"""Members of one bundle, and as many signatures."""


def most_unpacked(size: int) -> int:
    """Return how many bytes a layer may have that is packed in so many."""
    return min(LARGEST_LAYER, size * EXPANSION + (1 << 20))
