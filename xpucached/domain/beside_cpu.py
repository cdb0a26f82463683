"""What a variant of a model takes on the processor, beside what it takes on the GPU.  Pure."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct


class TimedUnit(StrEnum):
    """What is timed on both devices."""

    PASS = "pass"  # noqa: S105 - no secret; a whole one, with the program's start
    STEP = "step"  #: one use, without the first
    TOKEN = "token"  # noqa: S105 - no secret; a further one of a generated text


class CpuComparison(Struct, frozen=True):
    """What a variant took on the GPU and on the processor; None is unknown."""

    unit: TimedUnit = TimedUnit.PASS
    gpu_seconds: float | None = None  #: for one unit
    cpu_seconds: float | None = None
    gpu_shown: bool = False  #: whether it was seen to run on the GPU
    cpu_shown: bool = False  #: whether it was seen to run on the processor, and on nothing else
    detail: str = ""  #: why a time is unknown

    @property
    def times_as_fast(self) -> float | None:
        """How many times as fast the GPU is; None if a time, or where it was taken, is unknown."""
        if not (self.gpu_shown and self.cpu_shown and self.gpu_seconds and self.cpu_seconds):
            return None
        return self.cpu_seconds / self.gpu_seconds

    @property
    def not_faster(self) -> bool:
        """Whether the GPU is known to be no faster than the processor."""
        times = self.times_as_fast
        return times is not None and times <= 1

    @property
    def sentence(self) -> str:
        """What is known, in words."""
        text = f"GPU {_time(self.gpu_seconds)}, CPU {_time(self.cpu_seconds)} per {self.unit}"
        if self.unit is not TimedUnit.PASS:
            text += f" ({_rate(self.gpu_seconds)} and {_rate(self.cpu_seconds)} {self.unit}s a second)"
        times = self.times_as_fast
        if self.not_faster:
            text += ": the GPU is not faster than the CPU"
        elif times is not None:
            text += f": the GPU is {times:.3g} times as fast"
        if self.gpu_seconds is not None and not self.gpu_shown:
            text += "; nothing shows that the first ran on a GPU"
        if self.cpu_seconds is not None and not self.cpu_shown:
            text += "; nothing shows that the second ran on the CPU alone"
        return f"{text}; {self.detail}" if self.detail else text


class ComparedVariant(Struct, frozen=True):
    """A variant's comparison with the processor, by its name."""

    variant: str  #: `Variant.label`
    comparison: CpuComparison


def _time(seconds: float | None) -> str:
    if seconds is None:
        return "unknown"
    return f"{seconds * 1000:.1f} ms" if seconds < 1 else f"{seconds:.3g} s" if seconds < 100 else f"{seconds:.0f} s"  # noqa: PLR2004 - three digits


def _rate(seconds: float | None) -> str:
    return f"{1 / seconds:.3g}" if seconds else "unknown"
