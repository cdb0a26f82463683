"""`inspect` and `why --programs` of a registered model: its libraries, wherever its program finds them."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from tests.support.builders import spirv
from tests.support.daemons import Daemon, daemon
from tests.support.device_images import program

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def host(home: Path, short_dir: Path) -> Iterator[Daemon]:
    """Return a daemon without any driver, which runs nothing by itself."""
    with daemon(home, short_dir) as one:
        one.configure("[schedule]\nprewarm = false\n")
        yield one


def test_the_libraries_of_a_model_are_looked_for_where_its_program_finds_them(host: Daemon, tmp_path: Path) -> None:
    (tmp_path / "extra").mkdir()
    (tmp_path / "extra/kernels.so").write_bytes(program(("spir64", spirv("a", "b"), ("a", "b"))))
    (tmp_path / "venv/lib/python3.11/site-packages").mkdir(parents=True)
    (tmp_path / "venv/pyvenv.cfg").write_text("home = /nowhere\n")
    python = tmp_path / "venv/bin/python"
    python.parent.mkdir()
    python.symlink_to(sys.executable)
    host.start()
    host.ctl("model", "add", "plain", "--", str(python), "app.py")
    host.ctl("model", "add", "led", "--env", f"PYTHONPATH={tmp_path / 'extra'}", "--", str(python), "app.py")
    host.ctl("model", "add", "shell", "--", "/bin/sh", "-c", f"{python} app.py")

    said = host.ctl("inspect", "plain", "--device", "B580").stdout
    assert "no device code in 0 files" in said
    assert f"of {tmp_path / 'venv'}" in said.replace("\n", " ")
    assert "of 2 kernels 2 are compiled at first use" in host.ctl("inspect", "led", "--device", "B580").stdout
    assert "2 are compiled at first use" in host.ctl("why", "led", "--programs").stdout
    assert "what it starts is not known" in host.ctl("inspect", "shell", "--device", "B580", check=66).stderr
