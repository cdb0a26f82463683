"""Programs in containers use a store of this host, with real runtimes: what `docs/containers.md` says is so.

A container is what a rootless podman makes first of all: a user namespace of its own, a mount namespace with the store
bound into it under another name, and a program that is somebody else there.  Needs root, to become a user without any.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import pytest

from tests.support.runtimes import Runtime
from tests.support.users import NOBODY
from xpucached import mounts
from xpucached.domain.stores import EntryState, FoundStore, Scan, Store, StoreOrigin
from xpucached.errors import SettingsError
from xpucached.kinds import sycl
from xpucached.settings import loading

SELF: Final = {"rootless": "--map-root-user", "keep-id": "--map-user=1234"}
"""Who the program is in its container; to the kernel it is the same user each time."""

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")


@pytest.fixture
def place(short_dir: Path) -> Path:
    """Return an empty store of another user, and nothing else, where he can reach it."""
    if shutil.which("unshare") is None or shutil.which("setpriv") is None:
        pytest.skip("unshare and setpriv are missing (Debian: apt-get install util-linux)")
    short_dir.chmod(0o755)
    store = short_dir / "store"
    store.mkdir(mode=0o700)
    os.chown(store, NOBODY, NOBODY)
    test = [
        "setpriv",
        f"--reuid={NOBODY}",
        f"--regid={NOBODY}",
        "--clear-groups",
        "unshare",
        "--user",
        "--mount",
        "true",
    ]
    done = subprocess.run(test, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"a user may make no user namespace here: {done.stderr.strip()}")
    return store


@pytest.fixture
def program(runtime: Callable[[str], Runtime], workload: Path, short_dir: Path) -> tuple[Runtime, Path, str]:
    """Return a real runtime, a program that uses it, and a Python that anybody may start."""
    real = runtime("rt2025.3")
    python = shutil.which(f"python3.{sys.version_info.minor}", path="/usr/local/bin:/usr/bin")
    copy = Path(shutil.copy(workload, short_dir / "workload.py"))
    copy.chmod(0o644)
    if python is None:
        pytest.skip("there is no Python that another user may start")
    return real, copy, python


def contained(
    program: tuple[Runtime, Path, str], store: Path, who: str, size: str, *, read_only: bool = False
) -> tuple[int, int, int]:
    """Run the program in a container; gives how many entries it made and used, and its exit status."""
    real, workload, python = program
    # Not the host's name for it: where a container sees the store is its own affair.
    inside = "/mnt"
    script = f"mount --bind {store} {inside}\n"
    script += f"mount -o remount,bind,ro {inside}\n" if read_only else ""
    script += f"exec {python} {workload} {size}\n"
    variables = real.environment(Path(inside), trace=True)
    variables["PYTHONPATH"] = str(next((real.root / "lib").glob("python3*/site-packages")))
    command = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
    # Only who is root there may mount; the program itself is then whoever it shall be.
    command += ["unshare", "--user", "--map-root-user", "--mount", "--fork"]
    if SELF[who] != "--map-root-user":
        script = script.replace(f"exec {python}", f"exec unshare --user {SELF[who]} {python}")
    done = subprocess.run(
        [*command, "sh", "-ec", script], env={**variables, "HOME": "/tmp"}, capture_output=True, text=True, check=False
    )
    lines = done.stderr.splitlines()
    assert '"checksum"' in done.stdout or done.returncode, done.stderr[-2000:]
    made = sum("device binary has been cached" in line for line in lines)
    return made, sum("using cached device binary" in line for line in lines), done.returncode


def look(store: Path) -> Scan:
    return sycl.scanner.scan(
        FoundStore(Store(sycl.NAME, store), StoreOrigin.FOUND, "test"), datetime.now(UTC), {}, None
    )


@needs_root
@pytest.mark.runtime
@pytest.mark.timeout(600)
def test_containers_of_one_user_share_his_store(
    place: Path, program: tuple[Runtime, Path, str], tmp_path: Path
) -> None:
    made, used, status = contained(program, place, "rootless", "small")
    assert (made > 0, used, status) == (True, 0, 0)
    # Root looks into no store of somebody else's.
    seen = look(Path(shutil.copytree(place, tmp_path / "copy")))
    assert {entry.state for entry in seen.entries} == {EntryState.OK}
    assert len(seen.entries) == made
    # All of it is the user's, whoever the program took itself for.
    assert {path.stat().st_uid for path in (place, *place.rglob("*"))} == {NOBODY}

    for who in SELF:
        assert contained(program, place, who, "small") == (0, made, 0)


@needs_root
@pytest.mark.runtime
@pytest.mark.timeout(600)
def test_a_store_that_came_with_an_image_is_used_and_never_written(
    place: Path, program: tuple[Runtime, Path, str]
) -> None:
    made, _, _ = contained(program, place, "rootless", "small")
    before = {path: path.stat().st_mtime_ns for path in place.rglob("*")}

    assert contained(program, place, "keep-id", "small", read_only=True) == (0, made, 0)
    # What is not in it is compiled, each time, and the program is none the worse.
    assert contained(program, place, "rootless", "medium", read_only=True) == (0, made, 0)
    assert {path: path.stat().st_mtime_ns for path in place.rglob("*")} == before


# -- homes ----------------------------------------------------------------------------------------------------------

MOUNTS: Final = """\
22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
40 22 0:35 / /home rw,relatime shared:20 - nfs4 server:/home rw,vers=4.2
41 40 0:36 / /home/local rw shared:21 - xfs /dev/sdb rw
42 22 0:37 / /srv/with\\040blank rw - cifs //server/share rw
43 22 0:38 / /data rw - ext4 /dev/sdc rw
44 43 0:39 / /data rw - ceph mon:/ rw
45 22 0:40 / /srv/one\u2028line\rmore rw - nfs4 server:/x rw
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/var/lib/xpucached", ""),
        ("/home/alice/.local/state/xpucached", "nfs4"),
        ("/home", "nfs4"),
        ("/homework", ""),
        ("/home/local/alice", ""),
        ("/srv/with blank/x", "cifs"),
        # The kernel writes of all ends of lines only its own in another way.
        ("/srv/one\u2028line\rmore/x", "nfs4"),
        # Of two in one place the later one is seen.
        ("/data/x", "ceph"),
    ],
)
def test_a_network_file_system_is_known(path: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    listed = tmp_path / "mountinfo"
    listed.write_text(MOUNTS)
    monkeypatch.setattr(os.path, "exists", lambda _path: True)

    assert mounts.network(Path(path), listed) == kind


def test_the_kernel_s_list_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = mounts.mounted()
    assert mounts.at("/proc/self/not-there/yet", found).kind == "proc"
    monkeypatch.setattr(mounts, "_NETWORK", frozenset({mounts.at(os.fspath(tmp_path), found).kind}))

    assert mounts.network(tmp_path / "not" / "there")


@pytest.mark.parametrize("user", [True, False])
def test_a_catalog_on_a_network_file_system_is_refused(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, user: bool
) -> None:
    listed = tmp_path / "mountinfo"
    listed.write_text(f"40 1 0:35 / / rw - ext4 x rw\n41 40 0:36 / {home} rw - nfs4 x rw\n")
    real = mounts.network
    monkeypatch.setattr(mounts, "network", lambda path: real(path, listed))
    environ = {"HOME": str(home), "XDG_RUNTIME_DIR": str(tmp_path)}
    if user:
        with pytest.raises(SettingsError, match="network file system \\(nfs4\\)") as refused:
            loading.load(None, user=True, environ=environ)
        assert "XPUCACHED_PATHS_STATE" in refused.value.hint
        # As the hint says.
        environ["XPUCACHED_PATHS_STATE"] = str(tmp_path / "state")
    assert loading.load(None, user=user, environ=environ).paths.state.is_relative_to(tmp_path if user else "/var/lib")


@pytest.mark.parametrize("how", ["another's", "open to all"])
def test_a_directory_for_the_catalog_that_is_not_ours_alone_is_refused(tmp_path: Path, how: str) -> None:
    state = tmp_path / "state"
    state.mkdir()
    if how == "open to all":
        state.chmod(0o777)
    elif os.geteuid() == 0:
        os.chown(state, NOBODY, NOBODY)
    else:
        pytest.skip("only root can give a directory away")
    environ = {"HOME": str(tmp_path), "XDG_RUNTIME_DIR": str(tmp_path), "XPUCACHED_PATHS_STATE": str(state)}
    with pytest.raises(SettingsError, match="is not ours alone"):
        loading.load(None, user=True, environ=environ)
