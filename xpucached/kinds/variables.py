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

LEADING: Final = (
    "OCL_ICD_FILENAMES",
    "OCL_ICD_VENDORS",
    "OPENCL_VENDOR_PATH",
    "ZE_ENABLE_ALT_DRIVERS",
    "LD_LIBRARY_PATH",
)
"""The variables that say which driver a program loads."""

SELECTING: Final = frozenset(
    {
        *("ONEAPI_DEVICE_SELECTOR", "SYCL_DEVICE_FILTER", "ZE_AFFINITY_MASK", "ZE_FLAT_DEVICE_HIERARCHY"),
        *("OCL_ICD_FILENAMES", "ZE_ENABLE_ALT_DRIVERS"),
    }
)
"""The variables that say which device a program gets."""

ON_CPU: Final = {"ONEAPI_DEVICE_SELECTOR": "*:cpu"}
"""What leads a program to the processor."""

OTHER_SELECTORS: Final = frozenset({"SYCL_DEVICE_FILTER", "SYCL_DEVICE_TYPE"})
"""Older variables for the same, with which runtimes refuse that one, or which could lead to a GPU beside it."""

FURTHER: Final = {
    "TRITON_CACHE_DIR": "triton",
    "TORCHINDUCTOR_CACHE_DIR": "inductor",
    "CUDA_CACHE_PATH": "cuda",
}
"""Where compilers that are no kind of ours cache, and the directory of that below a model's own."""

CHOICES: Final = frozenset(
    {"ONEAPI_DEVICE_SELECTOR", "SYCL_DEVICE_FILTER", "ZE_AFFINITY_MASK", "ZE_FLAT_DEVICE_HIERARCHY"}
)
"""The variables that choose among devices: each process of a job may have its own."""

STEPS: Final = CHOICES | {
    *("SYCL_PROGRAM_COMPILE_OPTIONS", "SYCL_PROGRAM_LINK_OPTIONS"),
    *("SYCL_PROGRAM_APPEND_COMPILE_OPTIONS", "SYCL_PROGRAM_APPEND_LINK_OPTIONS"),
    *("SYCL_DEVICELIB_INHIBIT_NATIVE", "SYCL_DEVICELIB_NO_FALLBACK"),
    *("UR_LOADER_USE_LEVEL_ZERO_V2", "SYCL_UR_USE_LEVEL_ZERO_V2"),
}
"""The variables that decide what a program compiles, and for which device: runs have a daemon's own, too."""

PLACES: Final = frozenset({*LEADING, *FURTHER, "VLLM_CACHE_ROOT", "TRITON_HOME", "MESA_SHADER_CACHE_DIR"})
"""Those whose values are paths from which programs load what they run."""

FILES: Final = frozenset({"OCL_ICD_FILENAMES", "ZE_ENABLE_ALT_DRIVERS"})
"""Those that name files: one without a slash is searched for in the usual places."""

KNOWN: Final = CACHE_VARIABLES | PLACES | STEPS | {"TORCHINDUCTOR_FX_GRAPH_CACHE"}
"""Every variable that a client takes over: what leads programs to caches and drivers, and what steers the compilers."""

OURS: Final = ("SYCL_CACHE_", "NEO_CACHE_")
"""How the names of variables begin that say where and whether to cache: with a model they are ours to say."""

STEERING: Final = ("SYCL_", "NEO")
"""How the names of others begin that steer a runtime of a kind: with another value it compiles something else."""

STORE: Final = "SYCL_CACHE_DIR"
"""Names the store of the kind that models are proven by."""
