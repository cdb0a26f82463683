"""Where the libraries of a model's program lie: nothing that it may load is left out unsaid."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest

from xpucached.errors import NotFound
from xpucached.inspection import environments

if TYPE_CHECKING:
    from pathlib import Path

ELF: Final = b"\x7fELF" + bytes(60)


def put(path: Path, content: bytes = ELF) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    path.chmod(0o755)
    return path


def environment(root: Path, settings: str = "home = /nowhere/bin\n") -> Path:
    put(root / "pyvenv.cfg", settings.encode())
    (root / "lib/python3.11/site-packages").mkdir(parents=True)
    return put(root / "bin/python3.11")


def found(tmp_path: Path, *command: str, **variables: str) -> list[str]:
    given = {"PATH": "", "HOME": str(tmp_path / "home"), **variables}
    return [str(one.relative_to(tmp_path)) for one in environments.places(command, tmp_path, given)]


def test_what_variables_and_pth_files_add_is_looked_through(tmp_path: Path) -> None:
    python = environment(tmp_path / "venv")
    for name in ("given", "beside/the/venv", "linked", "venv/lib/inner"):
        (tmp_path / name).mkdir(parents=True)
    site = tmp_path / "venv/lib/python3.11/site-packages"
    (site / "one.pth").write_text(
        f"# {tmp_path}\nimport sys; sys.path.append('/none')\n\n../../../../beside/the/venv\n{tmp_path / 'none'}\n"
    )

    path = f"given:{tmp_path / 'none'}:"
    assert found(
        tmp_path, str(python), "app.py", PYTHONPATH=path, LD_LIBRARY_PATH="linked:venv/lib/inner:/usr/lib"
    ) == [
        "venv",
        "venv/lib/python3.11/site-packages/../../../../beside/the/venv",
        "given",
        "linked",
    ]


def test_what_cannot_be_looked_at_hides_nothing_beside_it(tmp_path: Path) -> None:
    python = environment(tmp_path / "venv")
    (tmp_path / "given").mkdir()
    (tmp_path / "venv/lib/python3.11/site-packages/one.pth").write_text("long" * 1000 + "\n")

    path = f"{'long' * 1000}:{tmp_path / 'given'}"
    assert found(tmp_path, str(python), "app.py", LD_LIBRARY_PATH=path) == ["venv", "given"]


def test_a_python_without_an_environment_has_the_packages_of_its_version_and_its_user_s(tmp_path: Path) -> None:
    put(tmp_path / "base/bin/python3.11")
    (tmp_path / "base/bin/python3").symlink_to("python3.11")
    kept = ["base/lib/python3.11/site-packages", "home/.local/lib/python3.11/site-packages"]
    for name in (*kept, "base/lib/python3.10/site-packages"):
        (tmp_path / name).mkdir(parents=True)
    python = str(tmp_path / "base/bin/python3")

    assert found(tmp_path, python) == kept
    assert found(tmp_path, python, PYTHONNOUSERSITE="1") == kept[:1]
    open_one = environment(
        tmp_path / "open", f"home = {tmp_path / 'base/bin'}\ninclude-system-site-packages = true\nversion = 3.11\n"
    )
    assert found(tmp_path, str(open_one)) == ["open", *kept]
    # As Python reads it, and as quickly: what is said last counts, however much stands before it.
    said = f"home = x{' ' * 60_000}x\ninclude-system-site-packages=True\nHome={tmp_path / 'base/bin'}\n"
    assert found(tmp_path, str(environment(tmp_path / "long", said))) == ["long", *kept]
    (tmp_path / "base/conda-meta").mkdir()
    assert found(tmp_path, python) == ["base", *kept[1:]]


def test_a_program_brings_what_lies_beside_it_and_a_script_its_interpreter(tmp_path: Path) -> None:
    put(tmp_path / "build/bin/llama-cli")
    put(tmp_path / "build/bin/libggml-sycl.so")
    put(tmp_path / "build/lib/libonemkl.so.1")
    put(tmp_path / "build/lib/script.so", b"GROUP ( libc.so )")
    assert sorted(found(tmp_path, "build/bin/llama-cli")) == [
        "build/bin/libggml-sycl.so",
        "build/bin/llama-cli",
        "build/lib/libonemkl.so.1",
    ]
    python = environment(tmp_path / "venv")
    put(tmp_path / "app", f"#!/usr/bin/env {python}\n".encode())
    assert found(tmp_path, "env", "-u", "A=1", "B=2", "./app") == ["venv"]
    assert found(tmp_path, "env", "-S", "-i A=1 ./app") == ["venv"]


@pytest.mark.parametrize("command", ["bash", "script", "none", ""])
def test_what_a_command_starts_may_be_unknown(tmp_path: Path, command: str) -> None:
    put(tmp_path / "bash")
    put(tmp_path / "script", b"#!/bin/sh\n")
    with pytest.raises(NotFound):
        environments.places([command] if command else [], tmp_path, {"PATH": ""})


def test_thousands_of_places_are_compared_in_one_go(tmp_path: Path) -> None:
    # Each with each would not be done within the test's time limit.
    python = environment(tmp_path / "venv")
    (tmp_path / "many").mkdir()
    names = [str(number) for number in range(8000)]
    for name in names:
        (tmp_path / "many" / name).touch()
    for first in range(0, len(names), 1000):
        lines = "".join(f"../../../../many/{name}\n" for name in names[first : first + 1000])
        (tmp_path / f"venv/lib/python3.11/site-packages/{first}.pth").write_text(lines)

    assert len(found(tmp_path, str(python), "app.py")) == 1 + len(names)


def test_what_cannot_even_be_asked_for_is_not_there(tmp_path: Path) -> None:
    long = "long" * 100
    python = environment(tmp_path / "venv", f"home = /{long}/bin\ninclude-system-site-packages = true\n")
    assert found(tmp_path, str(python)) == ["venv"]
    put(tmp_path / "script", f"#!/{long}/python3\n".encode())
    with pytest.raises(NotFound, match="not known"):
        found(tmp_path, "./script")
    with pytest.raises(NotFound, match="no such program"):
        found(tmp_path, f"./{long}")
    put(tmp_path / "app/program")
    (tmp_path / "lib").write_bytes(b"no folder")
    assert found(tmp_path, "app/program") == ["app/program"]
