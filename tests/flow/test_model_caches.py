"""A model that is warm by what other compilers cached for it, and what becomes of it when that goes."""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING

import pytest

from tests.support.daemons import Daemon, daemon

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LINKS = """
cd "$TRITON_CACHE_DIR" || exit; test -e done.so && { test -s done.so; exit; }
echo whole >whole; : >mark; : >done.so; exec sleep 300
"""
"""A linker makes a file empty and fills it at its end; what is there is taken for done, and fails if it is empty."""
COMPILES = 'mkdir -p "$TRITON_CACHE_DIR"; cd "$TRITON_CACHE_DIR"; test -e kernel || echo compiled >kernel'


@pytest.fixture
def host(home: Path, short_dir: Path) -> Iterator[Daemon]:
    """Return a daemon that is not started yet."""
    with daemon(home, short_dir) as one:
        yield one


def test_a_model_whose_cache_was_evicted_is_not_warm_until_it_is_proven_again(host: Daemon) -> None:
    host.configure("[schedule]\nprewarm = false\nsettle = '0.2s'\n[policy]\nmax_bytes = '1kB'\n")
    host.start()
    host.ctl("model", "add", "net", "--device", "cpu", "--", "/bin/sh", "-c", COMPILES)
    host.ctl("prewarm", "net")
    assert host.ask("model", "show", "net")["warmth"] == "warm"
    kernel = host.home / ".cache/xpucached/models/net/triton/kernel"
    then = time.time() - 3600
    os.utime(kernel, (then, then))
    shown = host.ctl("evict", "--dry-run").stdout
    assert "over-budget" in shown
    assert "would evict 1 directory and free" in shown
    assert "evicted 1 directory" in host.ctl("evict").stdout
    assert not kernel.exists()
    assert host.ask("model", "show", "net")["warmth"] != "warm"
    host.ctl("prewarm", "net")
    assert host.ask("model", "show", "net")["warmth"] == "warm"
    assert "in the trash: " in host.ctl("model", "remove", "net").stdout
    assert not kernel.exists()


@pytest.mark.parametrize("end", ["cancelled", "killed"])
@pytest.mark.parametrize("place", ["own", "named"])
def test_what_was_being_linked_when_a_run_was_ended_fails_no_program(
    host: Daemon, tmp_path: Path, end: str, place: str
) -> None:
    host.configure("[schedule]\nprewarm = false\nsettle = '0.2s'\n")
    host.start()
    cache = tmp_path / "named" if place == "named" else host.home / ".cache/xpucached/models/net/triton"
    cache.mkdir(parents=True)
    (cache / "before.so").touch()
    os.utime(cache / "before.so", (0, 0))
    options = ("--device", "cpu", *(("--env", f"TRITON_CACHE_DIR={cache}") if place == "named" else ()))
    host.ctl("model", "add", "net", *options, "--", "/bin/sh", "-c", LINKS)
    host.ctl("prewarm", "net", "--no-wait")
    host.until((cache / "done.so").exists)
    with (cache / "open.so").open("w"):
        if end == "killed":
            host.end(signal.SIGKILL)
            host.start()
        else:
            host.ctl("jobs", "--cancel", str(host.rows("jobs")[0]["id"]))
            host.until(host.idle)
        # In a directory that somebody names only libraries that came in the run go: a mark may be another program's.
        theirs = ("before.so", "mark") if place == "named" else ()
        assert {one.name for one in cache.iterdir()} == {"whole", "open.so", *theirs}


BUILDS = """
mkdir -p "$HOME/.cache/torch_extensions/py311_cpu/fast"; cd "$HOME/.cache/torch_extensions/py311_cpu/fast"
exec python3 -c "import os, time; os.open('lock', os.O_CREAT | os.O_EXCL); open('mark', 'w'); time.sleep(300)"
"""
"""As PyTorch does while it builds an extension: whoever finds the lock waits until it is gone."""


def test_a_lock_of_what_was_being_built_when_a_run_was_ended_is_waited_for_by_no_program(host: Daemon) -> None:
    host.configure("[schedule]\nprewarm = false\nsettle = '0.2s'\n")
    host.start()
    built = host.home / ".cache/torch_extensions/py311_cpu/fast"
    another = built.parent / "another"
    another.mkdir(parents=True)
    host.ctl("model", "add", "net", "--device", "cpu", "--", "/bin/sh", "-c", BUILDS)
    host.ctl("prewarm", "net", "--no-wait")
    host.until((built / "mark").exists)
    # Another program builds meanwhile, and goes on.
    with (another / "lock").open("w"):
        host.ctl("jobs", "--cancel", str(host.rows("jobs")[0]["id"]))
        host.until(host.idle)
        assert [one.name for one in built.iterdir()] == ["mark"]
        assert (another / "lock").exists()
