"""The SYCL persistent device code cache (``libsycl_cache``) of Intel's DPC++ runtime.

Read from intel/llvm's sources and checked on runtimes 2024.2 to 2026.2; formats and faults are in ``docs/kinds.md``.
"""

from __future__ import annotations

from typing import Final

from xpucached.kinds.interface import Kind
from xpucached.kinds.sycl import (
    activity,
    defects,
    discovery,
    doctor,
    following,
    portable,
    preflight,
    rebuilder,
    remover,
    scanner,
    targets,
    trace,
    trash_files,
)

NAME: Final = targets.NAME

KIND: Final = Kind(
    NAME,
    defects=defects.DEFECTS,
    discovery=discovery,
    scanner=scanner,
    remover=remover,
    trash=trash_files,
    recorder=trace,
    tracer=following,
    activity=activity,
    rebuilder=rebuilder,
    doctor=doctor,
    preflight=preflight,
    portable=portable,
)
