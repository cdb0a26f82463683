"""Which SYCL runtimes a program finds, which its processes had mapped, and which meet damage in which way."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from xpucached.domain.models import Workload
from xpucached.host.roots import HostRoots
from xpucached.kinds.sycl import preflight
from xpucached.kinds.sycl import runtimes as installed
from xpucached.kinds.sycl.defects import Generation

if TYPE_CHECKING:
    from collections.abc import Mapping

NOWHERE = Path("/nowhere/bin/app")


def library(folder: Path, name: str = "libsycl.so.8", content: bytes = b"one") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(content)
    return folder / name


def found(*folders: Path) -> list[Path]:
    """Return the runtimes that a program finds in these folders."""
    variables = {"LD_LIBRARY_PATH": ":".join(map(str, folders))}
    return [one.library for one in preflight.runtimes(NOWHERE, variables, ())]


def test_a_program_finds_a_runtime_as_the_loader_does(tmp_path: Path) -> None:
    first = library(tmp_path / "first", content=b"a")
    beside = library(tmp_path / "venv" / "lib", "libsycl.so.9", b"b")
    system = library(tmp_path / "system", content=b"c")
    program = tmp_path / "venv" / "bin" / "python"
    places = (system.parent,)

    def seen(variables: Mapping[str, str], program: Path = program) -> list[Path]:
        return [one.library for one in preflight.runtimes(program, variables, places)]

    assert seen({"LD_LIBRARY_PATH": f"relative::{first.parent}"}) == [first, beside]
    assert seen({}) == [beside]
    assert seen({}, Path("/nowhere/bin/python")) == [system]
    (one,) = preflight.runtimes(program, {}, places)
    assert one.layout == 3


def test_among_more_names_than_are_listed_a_runtime_is_found_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "lib"
    expected = {library(place, f"libsycl.so.{number}", f"{number}".encode()) for number in range(4)}
    monkeypatch.setattr(installed, "_MOST_NAMES", 3)
    found = preflight.runtimes(Path("/nowhere/bin/app"), {"LD_LIBRARY_PATH": str(place)}, ())

    assert {one.library for one in found} == expected


def test_the_same_content_is_the_same_build(tmp_path: Path) -> None:
    for folder, content in (("a", b"same"), ("b", b"same"), ("c", b"other")):
        library(tmp_path / folder, content=content)
    path = ":".join(str(tmp_path / folder) for folder in "abc")
    found = preflight.runtimes(Path("/nowhere/bin/app"), {"LD_LIBRARY_PATH": path}, ())

    assert len(found) == 2
    assert len({one.build for one in found}) == 2


def test_what_looks_like_a_runtime_and_is_none_is_passed_over(tmp_path: Path) -> None:
    place = tmp_path / "lib"
    library(place, "libsycl.so.8.0.0-gdb.py")
    library(place, "libsycl-preview.so.8")
    (place / "libsycl.so.7").mkdir()
    os.mkfifo(place / "libsycl.so.8")
    (place / "libsycl.so.9").symlink_to("nowhere")

    assert preflight.runtimes(Path("/nowhere/bin/app"), {"LD_LIBRARY_PATH": str(place)}, ()) == ()


def test_of_one_folder_the_newest_comes_first_and_eight_are_enough(tmp_path: Path) -> None:
    for number in range(9):
        library(tmp_path, f"libsycl.so.{number}", f"{number}".encode())

    assert found(tmp_path) == [tmp_path / f"libsycl.so.{number}" for number in range(8, 0, -1)]


@pytest.mark.parametrize(("number", "layout"), [(7, 2), (8, 2), (9, 3), (10, 3), (100, 3)])
def test_the_number_of_a_runtime_says_how_programs_are_described_to_it(
    tmp_path: Path, number: int, layout: int
) -> None:
    path = library(tmp_path, f"libsycl.so.{number}")
    (one,) = preflight.runtimes(NOWHERE, {"LD_LIBRARY_PATH": str(tmp_path)}, ())

    assert (one.library, one.layout) == (path, layout)


def test_of_too_many_names_every_number_of_three_digits_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = [library(tmp_path, f"libsycl.so.{number}", f"{number}".encode()) for number in (999, 0)]
    library(tmp_path, "libsycl.so.1000")
    monkeypatch.setattr(installed, "_MOST_NAMES", 2)

    assert found(tmp_path) == expected


def test_a_library_is_told_by_all_of_its_content_up_to_a_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installed, "_KNOWN", {})
    monkeypatch.setattr(installed, "_PIECE", 2)
    monkeypatch.setattr(installed, "_LARGEST", 5)
    contents = (b"abcde", b"abcdf", b"bbcde", b"abcd", b"abcdef")
    paths = [library(tmp_path / str(number), content=content) for number, content in enumerate(contents)]

    opened = len(os.listdir("/proc/self/fd"))

    assert found(*(path.parent for path in paths)) == paths[:-1], "the last is too large"
    assert {len(build) for build in installed._KNOWN.values()} == {32}
    assert len(os.listdir("/proc/self/fd")) == opened


def test_a_library_is_read_once_and_few_are_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known: dict[object, str] = {}
    monkeypatch.setattr(installed, "_KNOWN", known)
    monkeypatch.setattr(installed, "_MOST_KNOWN", 2)
    reads: list[int] = []
    read = os.read

    def counted(descriptor: int, size: int) -> bytes:
        reads.append(size)
        return read(descriptor, size)

    monkeypatch.setattr(os, "read", counted)
    folders = [library(tmp_path / name, content=name.encode()).parent for name in ("a", "b", "c")]
    assert [len(found(folder)) for folder in (*folders[:2], *folders[:2])] == [1, 1, 1, 1]
    assert reads == [1, 1]
    assert len(known) == 2
    found(folders[2])
    assert len(known) == 1


# -- what processes had mapped ----------------------------------------------------------------------------------------


def test_what_processes_had_mapped_is_a_runtime_by_its_name_and_content(tmp_path: Path) -> None:
    first = library(tmp_path / "a", "libsycl.so.8.0.0", b"same")
    again = library(tmp_path / "b", "libsycl.so.8.0.0", b"same")
    newer = library(tmp_path / "c", "libsycl.so.9", b"newer")
    other = library(tmp_path / "d", "libur_loader.so.0", b"other")
    (tmp_path / "libsycl.so.7").mkdir()
    mapped = [newer, again, first, other, tmp_path / "libsycl.so.7", tmp_path / "libsycl.so.6"]
    later = datetime.now(UTC) + timedelta(hours=1)

    made = preflight.mapped(mapped, later)
    assert [(one.library, one.layout) for one in made] == [(first, 2), (newer, 3)]
    assert preflight.mapped(mapped, later - timedelta(days=1)) == (), "all were put there since"


def test_of_what_was_mapped_eight_are_enough(tmp_path: Path) -> None:
    paths = [library(tmp_path, f"libsycl.so.{number}", f"{number}".encode()) for number in range(9)]
    made = preflight.mapped(reversed(paths), datetime.now(UTC) + timedelta(hours=1))

    assert [one.library for one in made] == paths[:8]


# -- how a runtime meets damage ---------------------------------------------------------------------------------------

OLDER, NEWER = b"\0Code caching: \0", b"\0[Persistent Cache]: \0"


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (OLDER, Generation.UP_TO_2025_0),
        (NEWER, Generation.FROM_2025_1),
        (OLDER + NEWER, None),
        (b"neither", None),
    ],
)
def test_a_runtime_is_told_by_the_words_of_its_trace(
    tmp_path: Path, content: bytes, expected: Generation | None
) -> None:
    path = library(tmp_path, content=content)

    assert installed.generation(path) is expected
    assert installed.generation(path) is expected, "as it was remembered"
    assert preflight.readers([path, tmp_path / "libsycl.so"]) == frozenset(), "the other one is not there"
    assert preflight.readers([path, tmp_path / "libz.so"]) == (frozenset() if expected is None else {expected})


def test_few_runtimes_are_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known: dict[object, Generation | None] = {}
    monkeypatch.setattr(installed, "_GENERATIONS", known)
    monkeypatch.setattr(installed, "_MOST_KNOWN", 2)
    counts = []
    for number in range(3):
        installed.generation(library(tmp_path, f"libsycl.so.{number}", OLDER))
        counts.append(len(known))

    assert counts == [1, 2, 1]
    assert installed.generation(tmp_path / "none") is None


# -- the folders of the runtimes that a model may load ----------------------------------------------------------------


def marked(folder: Path) -> Path:
    folder.mkdir(parents=True)
    (folder / "libur_loader.so.0").touch()
    return folder


def folders(workloads: list[Workload], variables: Mapping[str, str], host: Path) -> tuple[Path, ...]:
    """Return what is found of folders of this test: the machine may have runtimes of its own."""
    every = installed.folders(workloads, variables, HostRoots(etc=host / "etc"))
    return tuple(one for one in every if one.is_relative_to(host))


def test_the_folders_of_a_model_come_before_those_of_the_host(tmp_path: Path) -> None:
    model, service = marked(tmp_path / "model"), marked(tmp_path / "service")
    torch = marked(tmp_path / "v/lib/python3.12/site-packages/torch/lib")
    beside = marked(tmp_path / "w" / "lib")
    (tmp_path / "empty").mkdir()
    (tmp_path / "link").symlink_to(model)
    (tmp_path / "odd" / "libur_loader.so.0").mkdir(parents=True)
    listed = f"{tmp_path}/{'x' * 300}:{tmp_path}/empty:{model};{tmp_path}/link:relative:{tmp_path}/odd"
    workloads = [
        Workload((f"{tmp_path}/v/bin/python",), tmp_path, {"LD_LIBRARY_PATH": listed}),
        Workload((f"{tmp_path}/w/bin/app",), tmp_path),
        Workload((), tmp_path),
    ]

    assert folders(workloads, {"LD_LIBRARY_PATH": str(service)}, tmp_path) == (model, torch, beside, service)


@pytest.mark.parametrize("program", ["bin/python", "{}/v/sbin/python", "python"])
def test_only_beside_a_program_in_a_bin_folder_libraries_are_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str
) -> None:
    marked(tmp_path / "v" / "lib")
    monkeypatch.chdir(tmp_path / "v")

    assert folders([Workload((program.format(tmp_path),), tmp_path)], {}, tmp_path) == ()


def test_of_the_system_s_folders_only_that_of_the_compiler_is_a_model_s(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler, other = marked(tmp_path / "compiler"), marked(tmp_path / "other")
    monkeypatch.setattr(installed, "_SYSTEM", (compiler, other))
    assert folders([], {}, tmp_path) == (compiler,)


def test_four_folders_are_enough(tmp_path: Path) -> None:
    places = [marked(tmp_path / str(number)) for number in range(5)]
    listed = {"LD_LIBRARY_PATH": ":".join(map(str, places))}

    assert folders([], listed, tmp_path) == tuple(places[:4])
