"""A user hands xpucached-watch directories that lead, by mounts and links of that user, to what somebody else does."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
from typing import TYPE_CHECKING, Final

import pytest

from tests.attacks.watching import LEAF, OWN, SPY, store
from tests.flow.test_watchd import rights
from xpucached.watchd import ownership

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.users import User

MOUNT: Final = shutil.which("mount") or "mount"
UMOUNT: Final = shutil.which("umount") or "umount"


def spied(
    attacker: User, victim: User, watch: Path, root: Path | str, theirs: Path, *words: str, apart: bool
) -> list[str]:
    """Let the attacker watch, and the victim write and read there; give the answer, and the paths that were told."""
    if apart and attacker.call("unshare", "-Urm", "true", check=None).returncode:
        pytest.skip("users may not make namespaces here")
    before = ["unshare", "-Urm"] if apart else []
    with attacker.start(*before, *attacker.words(SPY, watch, root, OWN, *words)) as spy:
        assert spy.stdout is not None
        answer = json.loads(spy.stdout.readline() or "null")
        if answer is None:
            pytest.fail(spy.communicate()[1])
        victim.python("import sys, pathlib; p = pathlib.Path(sys.argv[1]); p.write_bytes(b'x'); p.read_bytes()", theirs)
        said, errors = spy.communicate("\n", timeout=120)
    assert spy.returncode == 0, errors
    if "refused" in answer:
        return [f"refused: {answer['why']}"]
    return [path for _, path, *_ in json.loads(said)]


@pytest.mark.parametrize("over", ["the way there", "everything"])
def test_a_directory_bound_over_the_way_to_anothers_tells_nothing(
    attacker: User, victim: User, common: Path, watch: Path, over: str
) -> None:
    """Where a directory seems to lie is up to its owner's mounts; the path of another's then begins just like it.

    The victim's home may be entered by nobody else: to bind over the way there, nobody has to.  What lies outside of
    the bound directory seems, on its mount, to lie at the root.
    """
    theirs = store(victim, victim.home / "store")
    mine = store(attacker, attacker.home / "mine")
    place, seems = (common, common) if over == "the way there" else ("/", "/..")

    heard = spied(attacker, victim, watch, seems, theirs / "11/0.src", f"mount --bind {mine} {place}", apart=True)

    assert set(heard) == {OWN}


def test_anothers_directory_bound_into_mine_tells_nothing(
    attacker: User, victim: User, common: Path, watch: Path
) -> None:
    theirs = store(victim, common / "theirs")
    mine = store(attacker, attacker.home / "mine")
    binds = f"mount --bind {theirs}/11 {mine}/11"

    heard = spied(attacker, victim, watch, mine, theirs / LEAF / "0.src", binds, apart=True)

    assert set(heard) == {OWN}


@pytest.mark.parametrize("kind", ["tmpfs", "overlay"])
def test_a_file_system_that_only_its_user_mounted_is_refused(
    attacker: User, victim: User, watch: Path, kind: str
) -> None:
    """It could be any program's, and let us wait for ever."""
    mine = store(attacker, attacker.home / "mine")
    for name in ("upper", "work"):
        (mine / name).mkdir()
    attacker.owns(mine)
    options = f"-o lowerdir={mine}/11,upperdir={mine}/upper,workdir={mine}/work" if kind == "overlay" else ""
    mount = f"mount -t {kind} {options} none {mine}/11"
    if attacker.call("unshare", "-Urm", "sh", "-c", mount, check=None).returncode:
        pytest.skip(f"users may not mount {kind} here")

    heard = spied(attacker, victim, watch, mine / "11", victim.home / "0.src", mount, apart=True)

    assert heard == ["refused: its file system is not mounted on this host, but in a namespace of its own"]


@pytest.fixture
def overlay(common: Path) -> Iterator[Path]:
    """Mount a file system on which the kernel tells no names, for everybody."""
    below = common / "below"
    for name in ("lower", "upper", "work", "merged"):
        (below / name).mkdir(parents=True)
    # An upper directory on an overlay is refused: in a container, memory takes its place.
    memory = subprocess.run([MOUNT, "-t", "tmpfs", "none", below], check=False, capture_output=True)
    for name in ("lower", "upper", "work", "merged"):
        (below / name).mkdir(parents=True, exist_ok=True)
    layers = f"lowerdir={below}/lower,upperdir={below}/upper,workdir={below}/work"
    done = subprocess.run(
        [MOUNT, "-t", "overlay", "none", "-o", layers, below / "merged"], check=False, capture_output=True
    )
    if memory.returncode or done.returncode:
        subprocess.run([UMOUNT, below], check=False, capture_output=True)
        pytest.skip(f"no overlayfs can be mounted here: {done.stderr!r}")
    try:
        yield below / "merged"
    finally:
        with contextlib.suppress(OSError):
            shutil.rmtree(below / "merged")
        subprocess.run([UMOUNT, "-l", below / "merged"], check=True)
        subprocess.run([UMOUNT, "-l", below], check=True)


def test_links_to_anothers_tell_nothing_where_there_are_no_names(
    attacker: User, victim: User, overlay: Path, watch: Path
) -> None:
    theirs, mine = store(victim, overlay / "theirs"), store(attacker, overlay / "mine")
    shutil.rmtree(mine / "11")
    (mine / "11").symlink_to(theirs / "11")

    heard = spied(attacker, victim, watch, mine, theirs / LEAF / "0.src", apart=False)

    assert set(heard) == {OWN}


def test_a_hard_link_to_anothers_file_tells_nothing_where_there_are_no_names(
    attacker: User, victim: User, overlay: Path, watch: Path
) -> None:
    theirs, mine = store(victim, overlay / "theirs"), store(attacker, overlay / "mine")
    (theirs / LEAF / "0.src").write_bytes(b"")
    victim.owns(theirs)
    os.link(theirs / LEAF / "0.src", mine / LEAF / "0.src")

    heard = spied(attacker, victim, watch, mine, theirs / LEAF / "0.src", apart=False)

    assert set(heard) == {OWN}


def test_what_was_given_to_somebody_else_is_told_no_more(
    attacker: User, victim: User, common: Path, watch: Path
) -> None:
    """It was the attacker's while it was handed in, and told of."""
    mine = store(attacker, common / "mine")
    with attacker.start(*attacker.words(SPY, watch, mine, OWN)) as spy:
        assert spy.stdout is not None
        assert "watching" in json.loads(spy.stdout.readline())
        attacker.call("touch", mine / LEAF / "1.src")
        victim.owns(mine / "11/22/33")
        victim.call("touch", mine / LEAF / "2.src")
        said, errors = spy.communicate("\n", timeout=120)

    assert spy.returncode == 0, errors
    assert f"{LEAF}/2.src" not in [path for _, path, *_ in json.loads(said)]


def test_what_others_write_into_mine_is_told_by_the_names_that_i_see_myself(
    attacker: User, victim: User, common: Path, watch: Path
) -> None:
    """A directory that everybody may write to: its owner may list it, but not what others make below it."""
    mine = store(attacker, common / "mine")
    (mine / LEAF).chmod(0o1777)
    with attacker.start(*attacker.words(SPY, watch, mine, OWN)) as spy:
        assert spy.stdout is not None
        assert "watching" in json.loads(spy.stdout.readline())
        victim.call("touch", mine / LEAF / "3.src")
        said, errors = spy.communicate("\n", timeout=120)

    assert spy.returncode == 0, errors
    assert f"{LEAF}/3.src" in [path for _, path, *_ in json.loads(said)]


def test_a_part_of_a_file_system_that_somebody_bound_deafens_nobody(
    attacker: User, victim: User, common: Path, watch: Path
) -> None:
    """At the attacker's mount, which comes first, there is no way up from what lies outside of it."""
    mine, theirs = store(attacker, common / "mine"), store(victim, common / "theirs")
    if attacker.call("unshare", "-Urm", "true", check=None).returncode:
        pytest.skip("users may not make namespaces here")
    bind = f"mount --bind {mine} {mine}"
    with attacker.start("unshare", "-Urm", *attacker.words(SPY, watch, mine, OWN, bind)) as spy:
        assert spy.stdout is not None
        assert "watching" in json.loads(spy.stdout.readline())
        heard = victim.python(SPY, watch, theirs, OWN).stdout
        said, errors = spy.communicate("\n", timeout=120)

    assert spy.returncode == 0, errors
    assert f'"{OWN}"' in heard
    assert {path for _, path, *_ in json.loads(said)} == {OWN}


def test_nothing_is_asked_of_what_lies_above_a_mount(common: Path) -> None:
    rights()
    above, mine = common / "above", common / "mine"
    for place in (above / "here", mine):
        place.mkdir(parents=True)
    subprocess.run([MOUNT, "--bind", mine, above / "here"], check=True)
    directory = os.open(above / "here", os.O_RDONLY)
    try:
        assert list(ownership._way_up(directory)) == [ownership.identity(mine.stat())]
    finally:
        os.close(directory)
        subprocess.run([UMOUNT, above / "here"], check=True)
