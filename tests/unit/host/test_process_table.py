"""What the kernel says of a process is read by the kernel's own ends of lines: any other may stand in a name."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from xpucached.host import process_table
from xpucached.host.roots import HostRoots

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("end", ["\r", "\f", "\x85", "\u2028"], ids=ascii)
def test_whatever_its_group_is_called_it_is_seen_whether_a_process_is_frozen(tmp_path: Path, end: str) -> None:
    name = f"one{end}name"
    group = tmp_path / "fs/cgroup" / name
    group.mkdir(parents=True)
    (tmp_path / "cgroup").write_bytes(f"0::/{name}\n".encode())

    for state in (False, True):
        (group / "cgroup.events").write_text(f"populated 1\nfrozen {state:d}\n")
        assert process_table._frozen(tmp_path, HostRoots(sysfs=tmp_path)) is state
