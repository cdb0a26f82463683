"""Ask and tell one worker, through its socket.  What it says is its user's word: bounded, typed, and about him only."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from xpucached import api, sockets
from xpucached.api.client import Client
from xpucached.domain import Job, JobId, UserStatus, Warmth, WorkerState
from xpucached.errors import Unavailable, Untrusted

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    from xpucached.api.client import Answer
    from xpucached.domain import Status

T = TypeVar("T")

LARGEST: Final = 8 << 20
_PATIENCE: Final = 15.0
_LONGEST: Final = 300  # characters of a sentence
_MOST: Final = 1000  # models, and problems, of one user that are remembered


def socket_of(uid: int) -> Path:
    """Give the socket of a user's worker."""
    return Path(sockets.worker_path(uid))


def ask(uid: int, request: api.Request[T], place: Callable[[int], Path] = socket_of) -> Answer[T]:
    """Ask a worker; blocks.  Raises `Unavailable` if nobody answers there, or somebody who is not this user."""
    with Client(
        place(uid),
        owner=uid,
        largest=LARGEST,
        patience=_PATIENCE,
        all_in_time=True,
        hint="the worker may have ended; ask again",
    ) as client:
        try:
            return client.call(request)
        except Untrusted as error:
            # Whoever it is, it is not this worker.
            raise Unavailable(error.message, hint=error.hint) from error


def digest(known: UserStatus, said: Status, now: datetime) -> UserStatus:
    """Keep of a worker's status what the host's daemon shows."""
    return replace(
        known,
        state=WorkerState.AWAKE,
        verdict=said.verdict,
        sentence=said.sentence[:_LONGEST],
        entries=max(0, said.entries),
        allocated=max(0, said.allocated),
        warm=sum(one.warmth is Warmth.WARM for one in said.models),
        cold=sum(one.warmth not in {Warmth.WARM, Warmth.UNCACHED} for one in said.models),
        models=tuple(one.model.name for one in said.models)[:_MOST],
        problems=tuple(dict.fromkeys(one.code[:_LONGEST] for one in said.problems))[:_MOST],
        seen=now,
    )


def outward(uid: int, job: Job) -> Job:
    """Give a worker's job the name by which the host's daemon finds it again."""
    return replace(job, id=JobId(f"{uid}.{job.id}"))


def inward(name: str) -> tuple[int, JobId] | None:
    """Give the user and the job that a name means."""
    uid, point, job = name.partition(".")
    return (int(uid), JobId(job)) if point and uid.isdecimal() and len(uid) <= len("4294967295") else None
