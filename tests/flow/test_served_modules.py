"""Whether what a server of Python is told to load, and an archive of modules, is part of what a model needs."""

from __future__ import annotations

import os
import sys
import zipfile
from typing import TYPE_CHECKING, Final

import pytest

from tests.support import daemons
from xpucached.domain.models import Workload
from xpucached.host import proofs

if TYPE_CHECKING:
    from pathlib import Path

SERVER: Final = f"#!{sys.executable}\nimport importlib, os, sys\nsys.path.insert(0, os.getcwd())\n"
LOADS: Final = "importlib.import_module(sys.argv[-1].partition(':')[0])\n"


def named(directory: Path, *command: str, **variables: str) -> set[str]:
    """Return the files of the working directory that a command names, by their names."""
    workload = Workload(command, directory, {"PATH": f"{directory}:{os.environ['PATH']}", **variables})
    return {one.path.removeprefix(f"{directory}/") for one in proofs.named(workload, {}).named}


@pytest.mark.parametrize(
    "command",
    [
        ("uvicorn", "main:app"),
        ("uvicorn", "main:app", "--port", "8000"),
        ("{python}", "-m", "uvicorn", "main:app"),
        ("gunicorn", "-w", "2", "main:make('x')"),
        ("env", "A=1", "uvicorn", "main:make", "--factory"),
        ("sh", "-c", "exec uvicorn main:app"),
        ("flask", "--app=main:app", "run"),
        ("hypercorn", "--workers", "1", "main:inner.app"),
    ],
)
def test_what_a_server_is_told_to_load_is_followed(tmp_path: Path, command: tuple[str, ...]) -> None:
    (tmp_path / "main.py").write_text("import net\n")
    (tmp_path / "net.py").write_text("A = 1\n")
    for name in ("uvicorn", "gunicorn", "hypercorn", "flask"):
        (tmp_path / name).write_text(SERVER)
        (tmp_path / name).chmod(0o755)
    assert {"main.py", "net.py"} <= named(tmp_path, *(one.format(python=sys.executable) for one in command))


@pytest.mark.parametrize(
    "words", ["--app-dir ../srv main:app", "main:app --app-dir ../srv", "main:app --chdir=../srv", "pkg.main:app"]
)
def test_where_a_server_is_told_to_look_counts(tmp_path: Path, words: str) -> None:
    work, served = tmp_path / "work", tmp_path / ("work/pkg" if "pkg" in words else "srv")
    work.mkdir()
    served.mkdir()
    (served / "main.py").write_text("import far\n")
    (tmp_path / "far").mkdir()
    (tmp_path / "far/far.py").write_text("A = 1\n")
    found = named(work, "uvicorn", *words.split(), PYTHONPATH=str(tmp_path / "far"))
    assert any(name.endswith("main.py") for name in found)
    assert str(tmp_path / "far/far.py") in found


def test_what_is_a_port_or_a_device_s_number_names_no_module(tmp_path: Path) -> None:
    for name in ("localhost", "xpu", "https"):
        (tmp_path / f"{name}.py").write_text("")
    assert not named(tmp_path, "/bin/true", "localhost:8000", "--device=xpu:0", "https://host/x", ":app", "a:b:c") & {
        f"{name}.py" for name in ("localhost", "xpu", "https")
    }


@pytest.mark.parametrize("way", ["variable", "script", "text"])
def test_an_archive_in_which_modules_are_looked_for_counts(tmp_path: Path, way: str) -> None:
    with zipfile.ZipFile(tmp_path / "lib.zip", "w") as archive:
        archive.writestr("net.py", "A = 1\n")
    (tmp_path / "log.txt").touch()
    says = "sys.path.insert(0, 'lib.zip'); print('log.txt')\n" if way == "text" else ""
    (tmp_path / "app.py").write_text(f"import sys\n{says}import net\n")
    (tmp_path / "run.sh").write_text('PYTHONPATH="$PWD/lib.zip" exec python3 app.py\n')
    command = ("bash", "run.sh") if way == "script" else (sys.executable, "app.py")
    found = named(tmp_path, *command, **({"PYTHONPATH": "lib.zip"} if way == "variable" else {}))
    assert "lib.zip" in found
    assert "log.txt" not in found


@pytest.mark.timeout(300)
@pytest.mark.parametrize("way", ["here", "script"])
def test_a_model_that_is_served_is_not_warm_when_what_it_loads_changed(
    home: Path, short_dir: Path, tmp_path: Path, way: str
) -> None:
    """Also where a script goes to it, and only its process tells where that is."""
    place = tmp_path / "srv" if way == "script" else tmp_path
    place.mkdir(exist_ok=True)
    (place / "main.py").write_text(f"import net, pathlib, time\npathlib.Path({str(tmp_path)!r}, 'cache/k').touch()\n")
    (place / "net.py").write_text("import time\ntime.sleep(0.5)\n")
    server = tmp_path / "serve"
    server.write_text(SERVER + LOADS)
    server.chmod(0o755)
    (tmp_path / "cache").mkdir()
    (tmp_path / "run.sh").write_text(f"cd $(echo vrs | rev)\nexec {server} main:app\n")
    with daemons.daemon(home, short_dir) as one:
        one.configure("[schedule]\nsettle = '0.2s'\nprewarm = false\n")
        one.start()
        words = ("bash", "run.sh") if way == "script" else (str(server), "main:app")
        cache = ("--device", "cpu", "--cache", str(tmp_path / "cache"))
        one.ctl("model", "add", "net", "--directory", str(tmp_path), *cache, "--", *words)
        one.ctl("prewarm", "net")
        assert one.rows("model", "list")[0]["warmth"] == "warm"
        (place / "net.py").write_text("A = 'another'\n")
        one.until(lambda: one.rows("model", "list")[0]["warmth"] == "changed")
        name = f"{place}/net.py".removeprefix(f"{tmp_path}/")
        assert one.ask("model", "show", "net")["changes"] == [f"{name} was modified"]
