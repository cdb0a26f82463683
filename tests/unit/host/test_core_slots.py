"""The host's cores are shared by all users' compilers: a bound for all, one for each, and a death frees its core."""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import threading
import time
from typing import TYPE_CHECKING

import pytest

from tests.support import forks
from xpucached.host import core_slots
from xpucached.host.core_slots import CoreBudget, CoreSlot, RunSlot
from xpucached.host.roots import HostRoots

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

NEVER = threading.Event()


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 0.01  # so that nobody waits for ever in vain
        return self.now


@pytest.fixture
def places(tmp_path: Path) -> HostRoots:
    runtime = tmp_path / "xpucached-host"
    runtime.mkdir()
    core_slots.make(runtime, 2)
    return HostRoots(run=tmp_path)


def later(slot: CoreSlot, cancel: threading.Event = NEVER) -> threading.Event:
    """Let it wait for a core in a thread; the event says that it has one."""
    has = threading.Event()

    def wait() -> None:
        if slot.hold(cancel):
            has.set()

    threading.Thread(target=wait, daemon=True).start()
    return has


@contextlib.contextmanager
def holding(places: HostRoots, *names: str) -> Iterator[None]:
    """Hold locks as anybody on the host can, with a program of one's own."""
    with contextlib.ExitStack() as stack:
        for name in names:
            descriptor = os.open(places.run / "xpucached-host/cores" / name, os.O_RDONLY)
            stack.callback(os.close, descriptor)
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield


def until_queued(places: HostRoots) -> None:
    """Wait until somebody stands in the queue."""
    while True:
        try:
            with holding(places, "next"):
                time.sleep(0.001)
        except BlockingIOError:
            return
        time.sleep(0.01)


def test_all_users_together_have_as_many_compilers_as_the_host_has_cores(places: HostRoots) -> None:
    slots = [CoreBudget(places).slot() for _ in range(3)]
    assert slots[0].hold(NEVER)
    assert slots[1].hold(NEVER)
    third = later(slots[2])
    assert not third.wait(0.3)
    slots[0].give_back()
    assert third.wait(60)
    for slot in slots:
        slot.give_back()


def test_who_had_a_core_does_not_come_before_who_waits(places: HostRoots) -> None:
    one, other, waiting = (CoreBudget(places) for _ in range(3))
    first, second = one.slot(), other.slot()
    assert first.hold(NEVER)
    assert second.hold(NEVER)
    third = waiting.slot()
    has = later(third)
    until_queued(places)
    first.give_back()
    again = later(first)
    assert has.wait(60)
    assert not again.wait(0.3)
    third.give_back()
    assert again.wait(60)
    first.give_back()
    second.give_back()


def test_who_holds_all_cores_for_ever_leaves_everybody_one_compiler(places: HostRoots) -> None:
    """Anybody may lock the files, and the queue, and never let go."""
    with holding(places, "0", "1", "next"):
        for _ in range(2):
            clock = Clock()
            budget = CoreBudget(places, clock, patience=0.05)
            slot, second = budget.slot(), budget.slot()
            assert slot.hold(NEVER)
            # One, and no more: it is the host that has too little.
            assert not later(second).wait(0.3)
            # And the next program does not wait as long again.
            slot.give_back()


def test_who_lends_a_core_for_moments_starves_nobody(places: HostRoots) -> None:
    """All are held, but for one, for a moment, just before who waits would go on without."""
    clock = Clock()
    budget = CoreBudget(places, clock, patience=60.0)
    slot = budget.slot()
    for _ in range(3):
        with holding(places, "0", "1", "next"):
            cancel = threading.Event()
            has = later(slot, cancel)
            assert not has.wait(0.15)
            clock.now += 50
            if has.wait(3.0):
                return
            cancel.set()
            assert not has.wait(0.25)
        assert slot.hold(NEVER)  # it is lent
        clock.now += 2
        slot.give_back()
    pytest.fail("it waits as long again each time")


@pytest.mark.flow
def test_a_core_comes_back_with_the_death_of_who_had_it(places: HostRoots) -> None:
    reading, writing = os.pipe()

    def holds() -> None:
        slot = CoreBudget(places).slot()
        os.write(writing, b"1" if slot.hold(NEVER) else b"0")
        time.sleep(60)

    children = [forks.copy(holds) for _ in range(2)]
    while len(os.read(reading, 1)) != 1 or len(os.read(reading, 1)) != 1:
        pass
    slot = CoreBudget(places).slot()
    has = later(slot)
    assert not has.wait(0.2)
    for child in children:
        forks.kill(child)
    os.close(reading)
    os.close(writing)
    assert has.wait(60)
    slot.give_back()


def test_who_is_cancelled_while_waiting_leaves_the_queue(places: HostRoots) -> None:
    with holding(places, "0", "1"):
        cancel = threading.Event()
        budget = CoreBudget(places)
        ends = []
        threads = [threading.Thread(target=lambda: ends.append(budget.slot().hold(cancel))) for _ in range(2)]
        for thread in threads:
            thread.start()
        time.sleep(0.15)
        cancel.set()
        for thread in threads:
            thread.join(60)
        assert ends == [False, False]
        with holding(places, "next"):
            pass


def test_without_the_host_s_daemon_nobody_waits(tmp_path: Path) -> None:
    budget = CoreBudget(HostRoots(run=tmp_path))
    slots = [budget.slot() for _ in range(20)]
    assert all(slot.hold(NEVER) for slot in slots)


def test_a_core_is_handed_on_after_a_while_only(places: HostRoots) -> None:
    """Between two short programs nobody asks the file system, nor anybody else."""
    slot = CoreBudget(places).slot()
    assert slot.hold(NEVER)
    before = slot._descriptor
    assert slot.hold(NEVER)
    assert slot._descriptor == before
    slot.give_back()
    slot.give_back()


def test_two_users_models_are_run_by_themselves_at_once(places: HostRoots) -> None:
    first, second, third = (RunSlot(places) for _ in range(3))
    assert first.hold()
    assert second.hold()
    assert not third.hold()
    # Who has a place keeps it, and takes no other.
    assert second.hold()
    first.give_back()
    first.give_back()
    assert third.hold()
    assert not first.hold()
    # Nobody takes a core for that.
    cores = [CoreBudget(places).slot() for _ in range(2)]
    assert all(one.hold(NEVER) for one in cores)
    for run in (second, third):
        run.give_back()
    for core in cores:
        core.give_back()


@pytest.mark.flow
def test_a_place_for_runs_comes_back_with_the_death_of_who_had_it(places: HostRoots) -> None:
    reading, writing = os.pipe()

    def holds() -> None:
        slot = RunSlot(places)
        os.write(writing, b"1" if slot.hold() else b"0")
        time.sleep(60)

    children = [forks.copy(holds) for _ in range(2)]
    assert os.read(reading, 1) + os.read(reading, 1) == b"11"
    slot = RunSlot(places)
    assert not slot.hold()
    for child in children:
        forks.kill(child)
    os.close(reading)
    os.close(writing)
    assert slot.hold()
    slot.give_back()


def test_where_the_host_has_no_daemon_or_one_that_knows_no_such_places_nobody_waits(
    tmp_path: Path, places: HostRoots
) -> None:
    assert RunSlot(HostRoots(run=tmp_path / "none")).hold()
    for name in ("run-0", "run-1"):
        (places.run / "xpucached-host/cores" / name).unlink()
    assert RunSlot(places).hold()


def test_the_files_can_be_locked_by_everybody_and_written_by_nobody(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        core_slots.make(tmp_path, 3)
        (tmp_path / "cores/0").chmod(0o600)
        number = (tmp_path / "cores/0").stat().st_ino
        core_slots.make(tmp_path, 1)
    finally:
        os.umask(before)
    assert sorted(one.name for one in (tmp_path / "cores").iterdir()) == ["0", "next", "run-0", "run-1"]
    assert (tmp_path / "cores/0").stat().st_ino == number, "who holds it would not be seen any more"
    modes = {stat.S_IMODE(one.stat().st_mode) for one in (tmp_path / "cores").iterdir()}
    assert (modes, stat.S_IMODE((tmp_path / "cores").stat().st_mode)) == ({0o444}, 0o755)


def test_a_link_in_place_of_a_file_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "cores").mkdir()
    victim = tmp_path / "victim"
    victim.write_text("x")
    victim.chmod(0o600)
    (tmp_path / "cores/0").symlink_to(victim)
    with pytest.raises(OSError, match="symbolic"):
        core_slots.make(tmp_path, 1)
    assert stat.S_IMODE(victim.stat().st_mode) == 0o600
