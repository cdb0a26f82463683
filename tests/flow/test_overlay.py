"""A store on overlayfs, as where a container's image brings one: nothing of the lower layer can be renamed whole."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests import REPOSITORY

if TYPE_CHECKING:
    from pathlib import Path

OVERLAID = """
import subprocess, sys
from datetime import UTC, datetime
from pathlib import Path
from tests.kinds.test_sycl_damage import look
from tests.support.builders import SyclStore
from xpucached.domain.plans import EvictReason
from xpucached.domain.trash import TrashLabel
from xpucached.kinds import sycl
place = Path(sys.argv[1])
# On what is an overlay already no other can be laid.
subprocess.run(["mount", "-t", "tmpfs", "none", place], check=True)
lower, upper, work, merged = (place / name for name in ("lower", "upper", "work", "merged"))
for one in (lower, upper, work, merged):
    one.mkdir()
below = SyclStore(lower)
for number in range(3):
    below.add(f"_ZTS1k{number}")
below.add("_ZTS1m", slot=0)
below.add("_ZTS1m", slot=1, image=None)
options = f"lowerdir={lower},upperdir={upper},workdir={work},userxattr"
subprocess.run(["mount", "-t", "overlay", "none", "-o", options, merged], check=True)
scan = look(merged)
store = scan.entries[0].id.store
note = TrashLabel(datetime.now(UTC), EvictReason.UNUSED, "not used")
told = []
taken = sycl.remover.remove(scan.entries, {one.id: note for one in scan.entries}, lambda *why: told.append(why))
trash = sycl.trash_files.trash(store)
print(len(scan.entries), sum(taken.values()), told, len(trash), [one.whole for one in trash].count(True))
print(len(look(merged).entries), [path.name for path in merged.iterdir() if not path.name.startswith(".")])
"""


def test_what_a_lower_layer_brought_goes_to_the_trash(tmp_path: Path) -> None:
    unshare = shutil.which("unshare")
    if unshare is None:
        pytest.skip("no unshare")
    done = subprocess.run(
        [unshare, "--map-root-user", "--mount", sys.executable, "-c", OVERLAID, tmp_path],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
    )
    if "unshare" in done.stderr or "'mount'" in "".join(done.stderr.splitlines()[-1:]):
        pytest.skip(f"no mounts here: {done.stderr}")
    assert done.stdout.splitlines() == ["5 5 [] 5 5", "0 []"], done.stdout + done.stderr
