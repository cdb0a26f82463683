"""A stand-in for a neural network: runs many small SYCL kernels and prints one line of JSON.

Usage: ``workload.py small|medium|large``

It exercises what networks are made of (activations, normalisation, attention, pooling, routing) once in each number
format, because every operator in every format is a kernel of its own, and the first process to meet a kernel compiles
it.  Every kernel of a smaller size is in the larger ones too.  Needs ``dpctl.tensor`` (dpctl 0.17 to 0.21) or ``dpnp``.
"""

from __future__ import annotations

import json
import sys
import time
import warnings
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

# Which formats, and how far down each list below; None is all of it.
SIZES: Final = {
    "small": (("float32",), 4, 3, 1, 0),
    "medium": (("float32", "int32"), 14, 12, 4, 3),
    "large": (("float32", "float64", "int32", "int64", "uint8"), None, None, None, None),
}

ACTIVATIONS: Final = (
    *("exp", "tanh", "sqrt", "abs", "log1p", "square", "floor", "sign", "cos", "isfinite", "negative", "ceil"),
    *("expm1", "atan", "sin", "log", "cosh", "asinh", "trunc", "isnan", "round", "cbrt", "sinh", "erf"),
)
COMBINATIONS: Final = (
    *("add", "multiply", "maximum", "subtract", "divide", "less", "minimum", "greater", "equal", "atan2", "hypot"),
    *("not_equal", "logaddexp", "pow", "less_equal", "floor_divide", "remainder", "copysign", "greater_equal"),
)
POOLINGS: Final = ("sum", "max", "argmax", "mean", "min", "prod", "argmin", "std", "logsumexp", "any", "all")
ROUTINGS: Final = ("sort", "argsort", "cumulative_sum", "unique_values", "flip", "tril", "nonzero")


class Array(Protocol):
    """What we need of an array, whichever library made it."""

    dtype: object
    sycl_device: Device

    def __getitem__(self, index: int) -> Array: ...


class Device(Protocol):
    """What we tell about the device."""

    name: str
    driver_version: str


class Operators:
    """The array library that is there."""

    def __init__(self) -> None:
        try:
            import dpctl.tensor as library  # noqa: PLC0415 - which library there is shows here
        except ImportError:
            import dpnp as library  # noqa: PLC0415 - the same
        self._library = library
        self.name = library.__name__

    def __getitem__(self, name: str) -> Callable[..., Array]:
        function: Callable[..., Array] = getattr(self._library, name)
        return function

    def named(self, names: tuple[str, ...]) -> Iterator[tuple[str, Callable[..., Array]]]:
        """Return those operators that this version of the library has."""
        return ((name, self[name]) for name in names if hasattr(self._library, name))


class Network:
    """Runs operators and adds up what they say."""

    def __init__(self, operators: Operators) -> None:
        self.operators = operators
        self.total = 0.0
        self.kernels = 0

    def take(self, result: Array) -> None:
        """Add a result to the checksum, to five digits: what drivers round differently drops out."""
        values = self.operators["asnumpy"](result).tolist()  # type: ignore[attr-defined]
        for value in _flat(values):
            self.total += float(f"{float(value):.4e}")

    def attempt(self, function: Callable[..., Array], *arguments: Array) -> None:
        """Run an operator; not every one exists for every format."""
        try:
            result = function(*arguments)
        except (TypeError, ValueError):
            return
        self.take(result[0] if isinstance(result, tuple) else result)
        self.kernels += 1


def _flat(values: object) -> Iterator[float]:
    if isinstance(values, list):
        for one in values:
            yield from _flat(one)
    else:
        yield float(values)  # type: ignore[arg-type]


def run(size: str, operators: Operators) -> tuple[Network, Device]:
    """Exercise one size."""
    formats, activations, combinations, poolings, routings = SIZES[size]
    network = Network(operators)
    device = operators["ones"](1, dtype="float32").sycl_device
    for number_format in formats:
        tokens = operators["arange"](1, 33, dtype=number_format)
        weights = operators["full"](32, 2, dtype=number_format)
        # Small enough that nothing overflows in any format, not even a product of all of them.
        few = operators["full"](6, 2, dtype=number_format)
        for name, function in operators.named(ACTIVATIONS[:activations]):
            network.attempt(function, few if name in {"exp", "expm1", "cosh", "sinh"} else tokens)
        for name, function in operators.named(COMBINATIONS[:combinations]):
            network.attempt(function, *((few, few) if name == "pow" else (tokens, weights)))
        for _, function in operators.named(POOLINGS[:poolings]):
            network.attempt(function, few)
        for name, function in operators.named(ROUTINGS[:routings]):
            network.attempt(function, operators["reshape"](tokens, (4, 8)) if name == "tril" else tokens)
        if routings != 0:
            square = operators["reshape"](tokens, (4, 8))
            network.attempt(operators["matmul"], square, operators["reshape"](weights, (8, 4)))
    return network, device


def main() -> int:
    """Run and say how it went."""
    if len(sys.argv) != 2 or sys.argv[1] not in SIZES:  # noqa: PLR2004 - the program and one word
        print("usage: workload.py small|medium|large", file=sys.stderr)
        return 64
    # dpctl 0.21 announces that its arrays move to dpnp, which we know.
    warnings.simplefilter("ignore", DeprecationWarning)
    began = time.monotonic()
    operators = Operators()
    loaded = time.monotonic()
    network, device = run(sys.argv[1], operators)
    print(
        json.dumps(
            {
                "size": sys.argv[1],
                "operators": network.kernels,
                "checksum": round(network.total, 3),
                "library": operators.name,
                "device": device.name,
                "driver": device.driver_version,
                "import_seconds": round(loaded - began, 2),
                "seconds": round(time.monotonic() - loaded, 2),
            }
        )
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
