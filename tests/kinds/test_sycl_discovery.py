"""Where programs keep their SYCL stores: by their variables, by a configuration file, by what a folder holds."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from xpucached import deadlines
from xpucached.domain.host import Process
from xpucached.kinds.sycl import discovery
from xpucached.libexec import interpreters

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import NoReturn


def process(variables: Mapping[str, str], *libraries: Path, pid: int = 7, directory: Path | None = None) -> Process:
    return Process(pid, 1000, NOW, "app", directory, dict(variables), libraries)


NOW = datetime(2026, 11, 1, tzinfo=UTC)
HOME = {"HOME": "/h"}
ON = {"SYCL_CACHE_PERSISTENT": "1"}


@pytest.mark.parametrize(
    ("variables", "directory", "root"),
    [
        ({"SYCL_CACHE_DIR": "/c"}, None, "/c"),
        ({"SYCL_CACHE_DIR": "/c/../d/"}, None, "/d"),
        ({"SYCL_CACHE_DIR": "", **ON, **HOME}, None, None),
        ({"SYCL_CACHE_DIR": "c"}, Path("/w"), "/w/c"),
        ({"SYCL_CACHE_DIR": "c"}, None, None),
        ({**ON, **HOME}, None, "/h/.cache/libsycl_cache"),
        ({**ON, **HOME, "XDG_CACHE_HOME": "/x"}, None, "/x/libsycl_cache"),
        (ON, None, None),
        (HOME, None, None),
        ({**HOME, "SYCL_CACHE_PERSISTENT": "0"}, None, None),
        ({**HOME, "SYCL_CACHE_PERSISTENT": "true"}, None, None),
    ],
)
def test_a_process_keeps_its_store_where_its_variables_say(
    variables: dict[str, str], directory: Path | None, root: str | None
) -> None:
    found = discovery.locate(process(variables, directory=directory))
    assert found == (None if root is None else (Path(root), "process 7 (app)"))


def test_a_program_of_a_user_has_the_cache_on_unless_it_is_switched_off() -> None:
    assert discovery.locate(process(HOME, pid=0)) == (Path("/h/.cache/libsycl_cache"), "app")
    assert discovery.locate(process({**HOME, "SYCL_CACHE_PERSISTENT": "0"}, pid=0)) is None


def written(folder: Path, *lines: str) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "sycl.conf").write_text("\n".join(lines))
    return folder / "sycl.conf"


def test_the_file_beside_the_runtime_says_what_the_variables_do_not(tmp_path: Path) -> None:
    file = written(
        tmp_path / "lib", "# SYCL_CACHE_DIR=/no", "nothing", "SYCL_CACHE_DIR=/c=d", "SYCL_CACHE_PERSISTENT=1"
    )
    library = file.parent / "libsycl.so.8"
    assert discovery.locate(process({}, library)) == (Path("/c=d"), str(file))
    assert discovery.locate(process({"LD_LIBRARY_PATH": f":{file.parent}"})) == (Path("/c=d"), str(file))
    assert discovery.locate(process({}, file.parent / "libother.so")) is None
    assert discovery.locate(process({"SYCL_CACHE_DIR": "/mine"}, library)) == (Path("/mine"), "process 7 (app)")
    assert discovery.enabled(process({}, library))
    assert not discovery.enabled(process({"SYCL_CACHE_PERSISTENT": "0"}, library))
    assert discovery.enabled(process(ON))
    assert not discovery.enabled(process({}))


@pytest.mark.parametrize(
    ("name", "value", "leaves_out"),
    [
        ("MIN", "0", False),
        ("MIN", "1", True),
        ("MAX", "0", False),
        ("MAX", "1073741823", True),
        ("MAX", "1073741824", False),
        ("MAX", "", False),
        ("MAX", "9" * 5000, False),
    ],
)
def test_what_leaves_out_programs_is_named(tmp_path: Path, name: str, value: str, *, leaves_out: bool) -> None:
    said = f"SYCL_CACHE_{name}_DEVICE_IMAGE_SIZE={value}"
    file = written(tmp_path / "lib", said)
    library = file.parent / "libsycl.so.8"
    assert discovery.bounds(process(dict([said.split("=")]))) == (said if leaves_out else "")
    assert discovery.bounds(process({}, library)) == (f"{said} in {file}" if leaves_out else "")
    # The variables come first.
    assert discovery.bounds(process({said.partition("=")[0]: "0"}, library)) == ""
    assert (discovery.configuration(process({}, library)), discovery.configuration(process({}))) == (str(file), "")


def test_the_supervisor_of_a_run_notes_all_that_leaves_out_programs() -> None:
    """It has a table of its own, for nothing of ours is imported there."""
    assert {*discovery._BOUNDS, "SYCL_CONFIG_FILE_NAME", "NEO_CACHE_PERSISTENT"} == interpreters.BOUNDS


def test_where_the_file_only_switches_the_cache_on_it_is_named(tmp_path: Path) -> None:
    file = written(tmp_path / "lib", "SYCL_CACHE_PERSISTENT=1")
    library = file.parent / "libsycl.so.8"
    assert discovery.locate(process(HOME, library)) == (Path("/h/.cache/libsycl_cache"), str(file))
    assert discovery.locate(process({**HOME, **ON}, library)) == (Path("/h/.cache/libsycl_cache"), "process 7 (app)")


def test_the_first_file_that_can_be_read_counts_and_one_that_is_named_before_all(tmp_path: Path) -> None:
    first, second = (written(tmp_path / name, f"SYCL_CACHE_DIR=/{name}") for name in ("a", "b"))
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "sycl.conf").mkdir()
    folders = {"LD_LIBRARY_PATH": f"relative:{tmp_path}/none:{tmp_path}/c:{first.parent}:{second.parent}"}
    assert discovery.locate(process(folders)) == (Path("/a"), str(first))
    named = {**folders, "SYCL_CONFIG_FILE_NAME": str(second)}
    assert discovery.locate(process(named)) == (Path("/b"), str(second))
    assert discovery.locate(process({**folders, "SYCL_CONFIG_FILE_NAME": "sycl.conf"})) is None


def test_a_directory_of_the_file_is_cut_where_the_runtime_cuts_it(tmp_path: Path) -> None:
    file = written(tmp_path / "lib", "SYCL_CACHE_DIR=/" + "c" * 200)
    found = discovery.locate(process({}, file.parent / "libsycl.so.8"))
    assert found == (Path("/" + "c" * 163), str(file))
    file = written(tmp_path / "lib", "SYCL_CACHE_DIR=/c\0d")
    assert discovery.locate(process({}, file.parent / "libsycl.so.8")) == (Path("/c"), str(file))


def test_of_a_process_so_many_folders_are_searched(tmp_path: Path) -> None:
    file = written(tmp_path / "lib", "SYCL_CACHE_DIR=/c")
    for before, found in ((99, True), (100, False)):
        listed = ":".join([*(f"/none/{number}" for number in range(before)), str(file.parent)])
        assert (discovery.locate(process({"LD_LIBRARY_PATH": listed})) is not None) is found


def test_the_places_of_the_host_count_for_programs_and_not_for_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = written(tmp_path / "lib", "SYCL_CACHE_DIR=/c")
    monkeypatch.setattr(discovery, "_STANDARD", (str(file.parent),))
    assert discovery.locate(process({}, pid=0)) == (Path("/c"), str(file))
    assert discovery.locate(process({}, pid=7)) is None


def test_a_file_that_nobody_answers_for_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def ask(*_: object) -> NoReturn:
        raise TimeoutError

    file = written(tmp_path / "lib", "SYCL_CACHE_DIR=/c")
    monkeypatch.setattr(deadlines, "ask", ask)
    assert discovery.locate(process({}, file.parent / "libsycl.so.8")) is None


@pytest.mark.parametrize(
    ("folders", "expected"),
    [
        (["1/2/3/4"], True),
        (["1/2/3"], False),
        (["1/2/3/x", "1/2/4/4"], True),
        (["x/2/3/4"], False),
        (["ext_kernel_compiler"], True),
        ([], False),
        ([*(f"{number}" for number in range(16)), "1/2/3"], False),
    ],
)
def test_a_store_is_known_by_four_levels_of_numbers(tmp_path: Path, folders: list[str], *, expected: bool) -> None:
    root = tmp_path / "root"
    root.mkdir()
    for one in folders:
        (root / one).mkdir(parents=True, exist_ok=True)
    assert discovery.recognise(root) is expected
    assert not discovery.recognise(tmp_path / "none")


def test_files_and_links_make_no_store(tmp_path: Path) -> None:
    (tmp_path / "real" / "1" / "2" / "3" / "4").mkdir(parents=True)
    root = tmp_path / "root"
    (root / "1" / "2" / "3").mkdir(parents=True)
    (root / "1" / "2" / "3" / "4").touch()
    (root / "2").symlink_to(tmp_path / "real" / "1")
    assert not discovery.recognise(root)


@pytest.mark.parametrize(
    ("path", "writes"),
    [
        ("/c/1/2/3/4/0.bin", True),
        ("/c/1/2/3/4/0.src (deleted)", True),
        ("/c/1/2/3/4/12.lock", True),
        ("/c/1/2/3/4/0_access_time.txt", True),
        ("/c/ext_kernel_compiler/k/ir.bin", True),
        ("/c/cache_size.txt", True),
        ("/c/1/2/3/4/x.bin", False),
        ("/c/1/2/3/4/0.binary", False),
    ],
)
def test_a_file_that_is_open_says_that_a_store_is_written(path: str, *, writes: bool) -> None:
    assert discovery.writes(path) is writes


def test_a_cache_is_switched_on_with_its_own_eviction_off() -> None:
    assert discovery.enable(Path("/c")) == {
        "SYCL_CACHE_PERSISTENT": "1",
        "SYCL_CACHE_DIR": "/c",
        "SYCL_CACHE_MAX_SIZE": "0",
    }
