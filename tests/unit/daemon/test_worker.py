"""A worker: until when it is needed."""

from __future__ import annotations

import math

from xpucached.daemon.worker import WorkerNeed

NEVER = -math.inf


def test_who_was_started_only_to_look_leaves_when_that_is_done() -> None:
    need = WorkerNeed(100.0)
    assert need.end(900.0, NEVER, NEVER) == 103.0

    need.work(160.0)
    assert need.end(900.0, NEVER, NEVER) == 163.0


def test_who_was_asked_stays_for_a_while() -> None:
    need = WorkerNeed(100.0)

    assert need.end(900.0, 120.0, NEVER) == 1020.0
    assert need.end(900.0, NEVER, 120.0) == 150.0
    assert need.end(1.0, 120.0, 110.0) == 140.0


def test_programs_that_work_in_the_stores_keep_it_and_its_own_work_does_not() -> None:
    need = WorkerNeed(100.0)
    need.work(200.0)
    need.stir(200.5)
    assert need.end(900.0, NEVER, NEVER) == 203.0

    need.stir(201.5)
    assert need.end(900.0, NEVER, NEVER) == 1101.5


def test_who_shall_stay_stays() -> None:
    assert WorkerNeed(100.0).end(None, NEVER, NEVER) == math.inf
