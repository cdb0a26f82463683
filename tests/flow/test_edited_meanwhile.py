"""Whether who works at a model's files while it is run is told from a program that writes them itself."""

from __future__ import annotations

import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final

import pytest
from msgspec.structs import replace

from tests.support import daemons
from xpucached.domain.models import Workload
from xpucached.host import proofs
from xpucached.host.dependency_changes import DependencyChecker
from xpucached.service.proofs import needed_by_all

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from xpucached.domain.dependencies import Dependency

APPLICATION: Final = """
import pathlib, sys, time
text = pathlib.Path(sys.argv[2]).read_text()
pathlib.Path("cache").mkdir(exist_ok=True)
cached = pathlib.Path("cache", text.strip())
if not cached.exists():
    cached.touch()
with open("starts", "a") as starts:
    starts.write("one more\\n")
while pathlib.Path("wait").exists():
    time.sleep(0.02)
"""


def nothing() -> None:
    """Be the pass of a program that writes nothing."""


class Proven:
    """A model that is run again and again; what its processes, or others, do in a pass is given."""

    def __init__(self, directory: Path, *command: str) -> None:
        self.directory = directory
        self.needs: tuple[Dependency, ...] = ()
        self._workload = Workload(command, directory, {})

    def run(self, *passes: Callable[[], object], mapped: tuple[str, ...] = (), data: tuple[str, ...] = ()) -> None:
        """Run it once, with what is done in each of its passes."""
        looks: list[proofs.DependencySnapshot] = []
        for one in passes:
            digested = self.needs
            looks.append(proofs.named(self._workload, {}, mapped if looks else None, digested))
            one()
        earlier = looks[0] if len(looks) > 1 else None
        self.needs = proofs.needed(self._workload, looks[-1], mapped, data, (), (), self.needs, (), earlier)

    def changes(self) -> tuple[str, ...]:
        """Return what changed since, and go on with what was looked at."""
        found = DependencyChecker().compare(self.needs, str(self.directory))
        self.needs = found.needs
        return found.changes


def saving(path: Path) -> Callable[[], object]:
    """Return somebody who saves a file, which is another one each time."""

    def save() -> None:
        path.write_text(path.read_text() + "# and more\n")

    return save


def meanwhile(*names: str) -> tuple[str, ...]:
    return tuple(f"{name} was changed while the run that proved it went on" for name in names)


def test_older_outputs_stay_out_of_the_proof_that_follows_an_edit(tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    (tmp_path / "out/runs").mkdir(parents=True)
    model, number = Proven(tmp_path, sys.executable, "train.py", "--output_dir", "out"), 0

    def train() -> None:
        """Write one more, and keep the last three, as transformers' Trainer does."""
        nonlocal number
        number += 1
        (tmp_path / f"out/runs/{number}").mkdir()
        (tmp_path / f"out/runs/{number}/events").touch()
        if number > 3:
            (tmp_path / f"out/runs/{number - 3}/events").unlink()
            (tmp_path / f"out/runs/{number - 3}").rmdir()

    model.run(train, train)
    for _ in range(4):
        train()
        assert model.changes() == ()
    for _ in range(3):
        saving(tmp_path / "train.py")()
        assert model.changes() == ("train.py was modified",)
        # What was compiled before is there: one pass proves it.
        model.run(train)
        for _ in range(4):
            train()
            assert model.changes() == ()


def test_what_is_added_to_a_directory_in_which_the_first_start_made_something_counts(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "train.py").touch()
    model = Proven(tmp_path, sys.executable, "train.py", "data")
    model.run((tmp_path / "data/labels.cache").touch, nothing)
    (tmp_path / "data/new.yaml").touch()
    saving(tmp_path / "train.py")()
    model.run(nothing)
    saving(tmp_path / "data/new.yaml")()
    assert model.changes() == ("data/new.yaml was modified",)


def test_what_somebody_adds_to_a_directory_that_was_proven_counts_all_the_same(tmp_path: Path) -> None:
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf/a.yaml").touch()
    model = Proven(tmp_path, "/bin/true", "conf")
    model.run(nothing, nothing)
    (tmp_path / "conf/more").mkdir()
    (tmp_path / "conf/more/b.yaml").touch()
    assert model.changes() == ("files were added to conf, or taken away",)
    model.run(nothing)
    saving(tmp_path / "conf/more/b.yaml")()
    assert model.changes() == ("conf/more/b.yaml was modified",)


@pytest.mark.parametrize("passes", [1, 2])
@pytest.mark.parametrize("name", ["conf.yaml", "model/config.json"])
def test_what_the_words_name_and_somebody_saves_while_it_runs_is_not_proven(
    tmp_path: Path, name: str, passes: int
) -> None:
    """It was taken for an output, and no later change of it was noticed."""
    file = tmp_path / name
    file.parent.mkdir(exist_ok=True)
    file.write_text("hidden: 1024\n")
    model = Proven(tmp_path, "/bin/true", "--config", name.partition("/")[0])
    model.run(nothing, nothing)
    assert model.changes() == ()
    model.run(*[nothing] * (passes - 1), saving(file))
    assert model.changes() == meanwhile(name)
    # And so as long as somebody works at it; what a run met from its last pass on is proven.
    for _ in range(2):
        model.run(nothing, saving(file))
        assert model.changes() == meanwhile(name)
    model.run(saving(file), nothing)
    assert model.changes() == ()
    saving(file)()
    assert model.changes() == (f"{name} was modified",)


def test_what_somebody_saves_in_the_second_pass_of_the_first_run_is_not_proven(tmp_path: Path) -> None:
    file = tmp_path / "conf.yaml"
    file.write_text("hidden: 1024\n")
    model = Proven(tmp_path, "/bin/true", "conf.yaml")
    model.run(nothing, saving(file))
    assert model.changes() == meanwhile("conf.yaml")


def test_a_file_that_comes_to_a_directory_while_it_runs_is_none_of_the_proof(tmp_path: Path) -> None:
    (tmp_path / "loras").mkdir()
    model = Proven(tmp_path, "/bin/true", "loras")
    model.run(nothing, nothing)
    model.run((tmp_path / "loras/style").touch)
    assert model.changes() == meanwhile("loras")
    model.run(nothing, nothing)
    assert model.changes() == ()
    (tmp_path / "loras/another").touch()
    assert model.changes() == ("files were added to loras, or taken away",)


def test_weights_that_are_downloaded_anew_while_they_are_mapped_are_not_proven(tmp_path: Path) -> None:
    weights = tmp_path / "weights"
    weights.write_bytes(bytes(1 << 20))
    model = Proven(tmp_path, "/bin/true")
    model.run(nothing, nothing, data=(str(weights),))

    def download() -> None:
        # The kernel's stamps are some milliseconds behind the clock.
        time.sleep(0.02)
        weights.write_bytes(bytes(2 << 20))

    model.run(download, data=(str(weights),))
    assert model.changes() == meanwhile("weights")
    model.run(nothing, nothing, data=(str(weights),))
    assert model.changes() == ()
    weights.write_bytes(bytes(3 << 20))
    assert model.changes() == ("weights was modified",)


def test_weights_that_have_another_inode_s_number_after_a_mount_are_the_same(tmp_path: Path) -> None:
    """As on exFAT, which has no such numbers: what is too large to be read was replaced each time."""
    weights = tmp_path / "m.gguf"
    with weights.open("wb") as file:
        file.truncate(600 << 20)
    model = Proven(tmp_path, "/bin/true", "m.gguf")
    model.run(nothing, nothing)
    mounted = [replace(one, inode=one.inode + (one.path == str(weights))) for one in model.needs]
    assert DependencyChecker().compare(mounted, str(tmp_path)).changes == ()
    # What truly is another file came to its name later.
    time.sleep(0.02)
    status = weights.stat()
    with (tmp_path / "other").open("wb") as file:
        file.truncate(600 << 20)
    os.utime(tmp_path / "other", ns=(status.st_atime_ns, status.st_mtime_ns))
    (tmp_path / "other").rename(weights)
    assert model.changes() == ("m.gguf was replaced",)


@pytest.mark.parametrize("command", [("python3", "app.py"), ("bash", "run.sh")])
def test_a_script_that_somebody_saves_in_each_run_is_not_left_out(tmp_path: Path, command: tuple[str, ...]) -> None:
    script = tmp_path / "app.py"
    script.write_text("import net\n")
    (tmp_path / "net.py").write_text("A = 1\n")
    (tmp_path / "run.sh").write_text("exec python3 app.py\n")
    model = Proven(tmp_path, *command)
    model.run(nothing, nothing)
    model.run(saving(script))
    for _ in range(3):
        assert model.changes() == meanwhile("app.py")
        model.run(nothing, saving(script))
    model.run(saving(script), nothing)
    assert model.changes() == ()
    saving(script)()
    assert model.changes() == ("app.py was modified",)


@pytest.mark.parametrize("name", ["conf.py", "log", "out/log", "out/gen.py", "libown.so"])
def test_what_a_program_writes_in_each_pass_is_left_out_after_two_runs(tmp_path: Path, name: str) -> None:
    """Also if it did not at first, and so counts as what it reads."""
    file = tmp_path / name
    file.parent.mkdir(exist_ok=True)
    file.write_text("")
    model = Proven(tmp_path, "python3", "app.py", "log", "out")
    (tmp_path / "app.py").write_text("import conf\n")
    mapped = (str(file),) if name.endswith(".so") else ()
    model.run(nothing, nothing, mapped=mapped)
    model.run(saving(file), mapped=mapped)
    assert model.changes() == meanwhile(name)
    model.run(saving(file), saving(file), mapped=mapped)
    saving(file)()
    assert model.changes() == ()


def test_two_files_of_which_the_second_is_written_from_a_later_run_on_settle(tmp_path: Path) -> None:
    """What one proof left out was unsettled in the next, by turns, without end."""
    app, first, second = (tmp_path / name for name in ("app.py", "first.py", "second.py"))
    app.write_text("import first, second\n")
    model = Proven(tmp_path, sys.executable, "app.py")

    def write(*files: Path) -> Callable[[], object]:
        return lambda: [file.write_text(f"A = {time.monotonic_ns()}\n") for file in files]

    model.run(write(first), write(first))
    model.run(write(first), write(first))
    assert model.changes() == ()
    model.run(write(first, second))
    assert model.changes() == meanwhile("first.py")
    model.run(write(first, second), write(first, second))
    assert model.changes() == ()
    # What did not change is proven all the same.
    saving(app)()
    assert model.changes() == ("app.py was modified",)


def test_two_libraries_that_a_launcher_compiles_settle(tmp_path: Path) -> None:
    """As above, of what no word names."""
    first, second = (tmp_path / name for name in ("libfirst.so", "libsecond.so"))
    first.write_text("by hand")
    model = Proven(tmp_path, "/bin/true")
    mapped = (str(first), str(second))
    model.run(nothing, nothing, mapped=mapped[:1])

    def compile_() -> None:
        for file in (first, second):
            # The kernel's stamps are some milliseconds behind the clock.
            time.sleep(0.02)
            file.write_text(str(time.monotonic_ns()))

    model.run(compile_, mapped=mapped)
    assert model.changes() == meanwhile("libfirst.so")
    model.run(compile_, compile_, mapped=mapped)
    assert model.changes() == ()


@pytest.mark.parametrize("slots", [2, 3, 5])
@pytest.mark.parametrize("words", ["folder", "files", "folders in one"])
def test_what_a_program_writes_by_turns_settles(tmp_path: Path, slots: int, words: str) -> None:
    """As checkpoints, of which each start writes the next one anew."""
    files = [tmp_path / "out" / str(number) for number in range(slots)]
    if words == "folders in one":
        files = [file / "model" for file in files]
    for file in files:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("")
    starts = 0

    def write() -> None:
        nonlocal starts
        saving(files[starts % slots])()
        starts += 1

    model = Proven(tmp_path, "/bin/true", *([f"out/{file.name}" for file in files] if words == "files" else ["out"]))
    for run in range(slots + 2):
        two = not run or bool(model.changes())
        model.run(*[write] * (1 + two))
        if run and not model.changes():
            break
    assert model.changes() == ()
    assert run <= slots + 1


def test_weights_that_come_one_after_the_other_while_it_runs_are_no_outputs_by_turns(tmp_path: Path) -> None:
    """The last of them was left out of the proof, and when it was replaced nobody noticed."""
    shards = [tmp_path / "model" / str(number) for number in range(4)]
    shards[0].parent.mkdir()
    for shard in shards:
        shard.write_text("old")
    model = Proven(tmp_path, "/bin/true", "model")
    model.run(nothing, nothing)
    saving(shards[0])()
    model.run(saving(shards[1]))
    assert model.changes() == meanwhile("model/1")
    model.run(saving(shards[2]), saving(shards[3]))
    assert model.changes() == meanwhile("model/3")
    model.run(nothing, nothing)
    assert model.changes() == ()
    saving(shards[3])()
    assert model.changes() == ("model/3 was modified",)


def test_what_one_variant_changes_of_that_which_another_needs_is_unsettled(tmp_path: Path) -> None:
    """It was "modified" at the end of each run, and each was followed by another at once."""
    generated = tmp_path / "generated.py"
    (tmp_path / "app.py").write_text("import generated\n")
    model = Proven(tmp_path, sys.executable, "app.py")
    variants: list[tuple[Dependency, ...]] = []
    for text in ("SHAPE = 1\n", "SHAPE = 22\n"):
        generated.write_text(text)
        model.run(nothing, nothing)
        variants.append(model.needs)
    same = needed_by_all((variants[0], variants[0]))
    assert same == variants[0]
    model.needs = needed_by_all(variants) or ()
    assert model.changes() == meanwhile("generated.py")


@pytest.mark.timeout(300)
def test_who_asks_for_a_model_right_after_an_edit_has_it_run(home: Path, short_dir: Path, tmp_path: Path) -> None:
    """What the last look found was still told for a second, and to who had just edited it: "warm already"."""
    conf = tmp_path / "conf.yaml"
    (tmp_path / "app.py").write_text(APPLICATION)
    conf.write_text("1024\n")
    with daemons.daemon(home, short_dir) as one:
        one.configure("[schedule]\nprewarm = false\n")
        one.start()
        words = ("--device", "cpu", "--cache", str(tmp_path / "cache"), "--", sys.executable, "app.py", "--config")
        one.ctl("model", "add", "m", "--directory", str(tmp_path), *words, "conf.yaml")
        one.ctl("prewarm", "m")
        for text, asked in (("2048\n", ("m",)), ("4096\n", ("--stale",))):
            one.ctl("model", "list")
            conf.write_text(text)
            assert "warm already" not in one.ctl("prewarm", *asked).stdout


@pytest.mark.timeout(300)
def test_a_configuration_that_is_saved_in_the_midst_of_a_run_is_run_once_more(
    home: Path, short_dir: Path, tmp_path: Path
) -> None:
    """It was "warm", and whatever was saved later was not noticed."""
    conf, starts, wait = tmp_path / "conf.yaml", tmp_path / "starts", tmp_path / "wait"
    (tmp_path / "app.py").write_text(APPLICATION)
    conf.write_text("1024\n")
    with daemons.daemon(home, short_dir) as one, ThreadPoolExecutor(1) as beside:
        one.configure("[schedule]\nsettle = '0.2s'\nprewarm = false\n")
        one.start()
        words = ("--device", "cpu", "--cache", str(tmp_path / "cache"), "--", sys.executable, "app.py", "--config")
        one.ctl("model", "add", "net", "--directory", str(tmp_path), *words, "conf.yaml")
        one.ctl("prewarm", "net")
        assert one.rows("model", "list")[0]["warmth"] == "warm"
        count = len(starts.read_text().splitlines())
        wait.touch()
        run = beside.submit(one.ctl, "prewarm", "--force", "net")
        while len(starts.read_text().splitlines()) == count:
            time.sleep(0.02)
        conf.write_text("2048\n")
        wait.unlink()
        run.result()
        assert one.ask("model", "show", "net")["changes"] == [*meanwhile("conf.yaml")]
        assert one.rows("model", "list")[0]["warmth"] == "changed"
        # Where nothing is left to compile, there are two passes all the same, and one of them counts.
        (tmp_path / "cache/2048").touch()
        count = len(starts.read_text().splitlines())
        one.ctl("prewarm", "--stale")
        assert len(starts.read_text().splitlines()) == count + 2
        assert one.rows("model", "list")[0]["warmth"] == "warm"
        assert "was warm: 0 entries used, none compiled" in str(one.rows("runs", "net")[0]["detail"])
        conf.write_text("4096\n")
        one.until(lambda: one.ask("model", "show", "net")["changes"] == ["conf.yaml was modified"])
