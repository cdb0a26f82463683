"""The row of the GPU driver's cache in the table of kinds."""

from __future__ import annotations

from typing import Final

from xpucached.kinds.interface import Kind
from xpucached.kinds.neo import defects, discovery, doctor, portable, rebuilder, recorder, remover, scanner, targets

NAME: Final = targets.NAME

KIND: Final = Kind(
    NAME,
    defects=defects.DEFECTS,
    discovery=discovery,
    scanner=scanner,
    remover=remover.REMOVER,
    trash=remover.TRASH,
    recorder=recorder,
    rebuilder=rebuilder,
    doctor=doctor,
    portable=portable,
)
