"""What the model runner is asked for, in words that it and its loaders share."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from types import ModuleType
from typing import Protocol, cast


class Foreign(Protocol):
    """A thing of a framework, of which we know that it has what we ask it for."""

    def __getattr__(self, name: str) -> Foreign: ...
    def __call__(self, *given: object, **named: object) -> Foreign: ...
    def __getitem__(self, key: object) -> Foreign: ...
    def __iter__(self) -> Iterator[Foreign]: ...
    def __sub__(self, other: object) -> Foreign: ...
    def __mul__(self, other: object) -> Foreign: ...
    def __pow__(self, other: object) -> Foreign: ...
    def __int__(self) -> int: ...
    def __float__(self) -> float: ...


class Unfit(Exception):
    """The job cannot be done with this model or this interpreter; the text says why."""


class Invalid(Exception):
    """The model ran, but what it gave cannot be right."""


class Token:
    """When the tokens of one text came, and how many there were for the row that got the fewest."""

    def __init__(self, began: float) -> None:
        self.began = began
        self.times: list[float] = []
        self.fewest = 0
        self.prompt: int | None = None  #: which of them was asked; None if that is not known
        self.answers: list[list[int]] = []  #: the tokens of each row, without those that end it
        self.bound = 0  #: so many there could be

    @property
    def first(self) -> float:
        """Seconds to the first one."""
        return self.times[0] - self.began

    @property
    def each(self) -> float | None:
        """Seconds per further one: (end - first) / (n - 1)."""
        return (self.times[-1] - self.times[0]) / (len(self.times) - 1) if len(self.times) > 1 else None


class RunOrder:
    """What is asked for."""

    def __init__(self, given: Mapping[str, object]) -> None:
        exercise = cast("Mapping[str, object]", given["exercise"])
        variant = cast("Mapping[str, str]", given["variant"])
        self.token = str(given["token"])
        self.loader = str(exercise["loader"])
        self.target = str(exercise["target"])
        self.inputs = str(exercise["inputs"])
        self.compile = bool(exercise["compile"])
        self.steps = int(cast("int", exercise["steps"]))
        self.new_tokens = int(cast("int", exercise["new_tokens"]))
        self.min_output_tokens = int(cast("int", exercise["min_output_tokens"]))
        self.tolerance = cast("float | None", exercise["tolerance"])
        self.options = {key: _parsed(text) for key, text in cast("Mapping[str, str]", exercise["options"]).items()}
        self.device = variant["device"] or str(exercise["device"])
        self.precision = variant["precision"]
        self.shape = variant["shape"]
        self.compare = bool(given.get("compare"))
        self.every = bool(given.get("every"))
        """Whether each prompt is to be asked, also if there are more than `steps`."""

    @property
    def sizes(self) -> list[list[int]]:
        """Return the shape as numbers, one list per input."""
        return [[int(size) for size in part.split("x")] for part in self.shape.split(",")] if self.shape else []

    @property
    def kind(self) -> str:
        """Return the type of the device, without its number."""
        return self.device.partition(":")[0]


def _parsed(text: str) -> object:
    try:
        return json.loads(text)
    except ValueError:
        return text


class Subject:
    """A model that is ready for use."""

    def __init__(self, call: Callable[[], object], logits: Callable[[], object] | None = None) -> None:
        self.call = call
        self.logits = logits or call  #: what is compared with float32
        self.token: Token | None = None  #: of the newest use
        #: bytes of weights by the type of the device, of a program that is no part of this process
        self.places: Mapping[str, int] = {}
        self.prompts = 0  #: how many different ones there are


def torch_of(job: RunOrder) -> ModuleType:
    """Return torch, with the job's device chosen.  Raise `Unfit` if there is none."""
    try:
        import torch  # noqa: PLC0415 - only here
    except ImportError as error:
        raise Unfit(f"this interpreter has no torch: {error}") from error
    module = cast("ModuleType", torch)
    extension = _extended(module) if job.kind == "xpu" and not offers(module, "xpu") else ""
    if job.kind != "cpu" and not offers(module, job.kind):
        raise Unfit(f"torch {module.__version__} of this interpreter sees no device {job.kind}{extension}")
    count = 1 if job.kind == "cpu" else int(getattr(module, job.kind).device_count())
    number = job.device.partition(":")[2]
    if number.isdigit() and int(number) >= count:
        raise Unfit(f"there is no {job.device}: torch sees {count}")
    if job.kind != "cpu" and number.isdigit():
        getattr(module, job.kind).set_device(int(number))
    return module


def _extended(torch: ModuleType) -> str:
    """Load the extension through which torch before 2.4 knows Intel's GPUs; return what is wrong if it is there.

    It is archived, and beside another torch than its own it does not even load: then we do without.
    """
    try:
        import intel_extension_for_pytorch  # noqa: F401, PLC0415 - it is its import that works
    except ModuleNotFoundError as error:
        if error.name == "intel_extension_for_pytorch":
            return ""
        wrong = f"{type(error).__name__}: {error}"
    except Exception as error:  # noqa: BLE001 - with another torch it is an AttributeError
        wrong = f"{type(error).__name__}: {error}"
    else:
        if offers(torch, "xpu"):
            return ""
        return "; intel-extension-for-pytorch is there, and loads, but is a build for processors or finds no driver"
    return (
        f"; intel-extension-for-pytorch does not load beside it ({wrong[:200]}): it needs the torch of its own version,"
        " and torch from 2.5 does without it"
    )


def offers(torch: ModuleType, kind: str) -> bool:
    """Return whether torch can use devices of a type."""
    part = getattr(torch, kind, None)
    return part is not None and bool(part.is_available())
