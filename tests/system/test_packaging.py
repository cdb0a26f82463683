"""What is built from the tree holds the whole program, whichever way it is built."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

import completions
import manual
import pytest

import xpucached
from tests import REPOSITORY

if TYPE_CHECKING:
    from collections.abc import Iterable

TREE: Final = ("LICENSE", "MANIFEST.in", "Makefile", "README.md", "pyproject.toml", "setup.py")
FOLDERS: Final = ("docs", "migrations", "systemd", "tests", "tools", "xpucached")
UNITS: Final = REPOSITORY / "systemd"
NAME: Final = f"xpucached-{xpucached.__version__}"


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the source archive from a copy of the tree, without a network."""
    tree = tmp_path_factory.mktemp("tree")
    for name in TREE:
        shutil.copy(REPOSITORY / name, tree)
    for name in FOLDERS:
        shutil.copytree(REPOSITORY / name, tree / name, ignore=shutil.ignore_patterns("__pycache__", "manual"))
    manual.write(tree / "xpucached" / "data" / "manual")
    return build("sdist", tree)


@pytest.fixture(scope="module")
def wheel(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel from what the source archive holds, so that both are complete or neither."""
    return build("wheel", unpacked(sdist, tmp_path_factory.mktemp("unpacked")))


def unpacked(sdist: Path, place: Path) -> Path:
    """Unpack the source archive; gives its tree."""
    # Not `extractall`: early 3.11 releases do not know its filters, and later ones warn without.
    with tarfile.open(sdist) as archive:
        for member in archive:
            stream = archive.extractfile(member)
            if stream is not None:
                (place / member.name).parent.mkdir(parents=True, exist_ok=True)
                (place / member.name).write_bytes(stream.read())
    return place / NAME


def build(what: str, tree: Path) -> Path:
    """Build with the build backend itself; gives the archive."""
    code = f"from setuptools import build_meta; print(build_meta.build_{what}('dist'))"
    done = subprocess.run([sys.executable, "-c", code], cwd=tree, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return tree / "dist" / done.stdout.split()[-1]


def files(folder: str, suffixes: Iterable[str]) -> set[str]:
    """Return the files of the tree with these suffixes, as paths from the repository."""
    wanted = set(suffixes)
    return {
        path.relative_to(REPOSITORY).as_posix()
        for path in (REPOSITORY / folder).rglob("*")
        if path.suffix in wanted and "__pycache__" not in path.parts
    }


def test_the_source_archive_holds_tests_and_tools(sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        held = {name.removeprefix(f"{NAME}/") for name in archive.getnames()}

    assert files("tests", [".py"]) <= held
    assert files("tools", [".py"]) <= held
    assert {"LICENSE", "Makefile", "README.md"} <= held


def test_the_wheel_holds_every_module_and_all_data(wheel: Path) -> None:
    program = {
        name
        for name in files("xpucached", [".py", ".csv", ".css", ".js", ".txt", ".typed"])
        if "/data/manual/" not in name
    }
    program |= files("xpucached/data/pam.d", [""])
    migrations = {f"xpucached/{name}" for name in files("migrations", [".py", ".mako"])}
    units = {f"xpucached/units/{path.relative_to(UNITS).as_posix()}" for path in UNITS.rglob("*") if path.is_file()}
    written = {f"man/{name}" for name in manual.PAGES} | {manual.EXAMPLE}
    for name in completions.COMPLETIONS.values():
        written |= {f"completions/{name.format(program=program)}" for program in ("xpucached", "xpucachectl")}
    with zipfile.ZipFile(wheel) as archive:
        held = {name for name in archive.namelist() if ".dist-info/" not in name}

    assert held == program | migrations | units | {f"xpucached/data/manual/{name}" for name in written}


def test_a_build_of_the_bare_sources_brings_the_completions(sdist: Path, tmp_path: Path) -> None:
    tree = unpacked(sdist, tmp_path)
    shutil.rmtree(tree / "xpucached" / "data" / "manual")
    place = tmp_path / "installed"
    with zipfile.ZipFile(build("wheel", tree)) as archive:
        archive.extractall(place)  # noqa: S202 - we made it
    command = [sys.executable, "-B", "-m", "xpucached.cli", "completion"]

    def printed(shell: str, where: Path = place) -> str:
        environ = {**os.environ, "PYTHONPATH": os.fspath(where), "PYTHONSAFEPATH": "1"}
        done = subprocess.run([*command, shell], env=environ, cwd=tmp_path, capture_output=True, text=True, check=False)
        return done.stdout if done.returncode == 0 else done.stderr

    assert "complete -o bashdefault -F _shtab_xpucachectl xpucachectl\n" in printed("bash")
    assert printed("zsh").startswith("#compdef xpucachectl\n")
    assert "complete -c xpucachectl" in printed("fish")
    assert "make man" in printed("fish", tree)


def test_an_index_would_take_both(sdist: Path, wheel: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "twine", "check", "--strict", sdist, wheel], capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stdout + done.stderr


def test_the_wheel_runs_by_itself(wheel: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")  # noqa: S202 - we made it
    code = (
        "from importlib.resources import files;"
        "import xpucached, xpucached.cli, xpucached.daemon.user_daemon, xpucached.migrations as migrations;"
        "print(xpucached.__file__, *migrations.__path__);"
        "assert files('xpucached').joinpath('data/intel-gpu-archs.csv').is_file();"
        "assert files(migrations).joinpath('script.py.mako').is_file();"
        "assert any(one.name.startswith('0001') for one in files(migrations).joinpath('versions').iterdir())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path / "site")},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert all(place.startswith(str(tmp_path)) for place in done.stdout.split())


def test_the_commands_are_installed() -> None:
    for command in ("xpucached", "xpucachectl"):
        done = subprocess.run(
            [Path(sys.executable).with_name(command), "--version"], capture_output=True, text=True, check=False
        )
        assert done.stdout.strip() == f"{command} {xpucached.__version__}", done.stderr


@pytest.mark.parametrize("form", ["a venv behind the user's own PATH", "linked by pipx or uv"])
def test_a_program_is_the_one_of_the_user_s_path_however_we_were_installed(tmp_path: Path, form: str) -> None:
    theirs, links = tmp_path / "theirs", tmp_path / "links"
    for place in (theirs, links):
        place.mkdir()
    (theirs / "python3").write_text("#!/bin/sh\necho theirs\n")
    (theirs / "python3").chmod(0o755)
    commands = Path(sys.executable).parent
    if form.startswith("linked"):
        (links / "xpucachectl").symlink_to(commands / "xpucachectl")
        commands = links
    bare = {"PATH": f"{theirs}:{commands}:/usr/bin:/bin", "HOME": str(tmp_path), "XDG_RUNTIME_DIR": str(tmp_path)}
    words = ["xpucachectl", "--user", "run", "--", "python3"]
    done = subprocess.run(words, env=bare, capture_output=True, text=True, check=False)

    assert (done.returncode, done.stdout) == (0, "theirs\n"), done.stderr
    assert "no daemon" in done.stderr
