"""What a model's program needs: noted when it is proven warm, compared later, by real files and a real daemon."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import os
import resource
import shutil
import sqlite3
import sys
import tempfile
import threading
import time
import tracemalloc
from datetime import UTC, datetime
from pathlib import Path
from subprocess import run
from types import SimpleNamespace
from typing import TYPE_CHECKING, Final

import pytest

from tests import INSTANCE
from tests.support import catalogs, daemons, many_files
from tests.support.builders import sycl_target
from xpucached.catalog.models import add_model
from xpucached.catalog.runs import begin_run, finish_run
from xpucached.domain.dependencies import Dependency, Role
from xpucached.domain.diagnosis import Cause, Diagnosis, Explanation
from xpucached.domain.host import Host
from xpucached.domain.jobs import Event
from xpucached.domain.models import Attribution, Coverage, Model, ModelStatus, Outcome, WarmReason, Warmth, Workload
from xpucached.domain.names import ModelName
from xpucached.domain.overview import OverviewModel
from xpucached.domain.workloads import Loader, RunSpec
from xpucached.host import digests, proofs, python_imports
from xpucached.host.dependency_changes import DependencyChecker
from xpucached.host.digests import Reader
from xpucached.planning.verdict import THEN
from xpucached.processes.output import Trace
from xpucached.processes.reports import read_seen
from xpucached.processes.results import RunResult
from xpucached.processes.runs import LIBEXEC
from xpucached.processes.supervised import ProcessStarter
from xpucached.server.redact import redact
from xpucached.service import Service
from xpucached.service.context import Context
from xpucached.service.proofs import ProofKeeper
from xpucached.service.store_finder import StoreFinder
from xpucached.settings import loading

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.support.daemons import Daemon


NOW: Final = datetime(2026, 5, 4, 12, tzinfo=UTC)
COMPILER: Final = shutil.which("cc") or shutil.which("gcc")


def clock() -> datetime:
    """Return the time of these tests."""
    return NOW


def workload(directory: Path, *command: str, **variables: str) -> Workload:
    return Workload(command, directory, {"PATH": os.environ["PATH"], **variables})


def named(of: Workload) -> dict[str, Role]:
    """Return what is named, the files of the working directory by their names; nothing of what this Python has."""
    prefix = f"{of.directory}/"
    found = (one for one in proofs.named(of, {}).named if not one.path.startswith(f"{sys.prefix}/lib"))
    return {one.path.removeprefix(prefix): one.role for one in found}


def test_an_import_of_a_megabyte_costs_no_gigabytes(tmp_path: Path) -> None:
    half = 1 << 18
    lines = (f"from {'a' * half} import {'b,' * half}", f"from beside import {'c,' * half}")
    (tmp_path / "app.py").write_text("\n".join(lines))
    (tmp_path / "beside.py").write_text("")
    tracemalloc.start()
    try:
        found = named(workload(tmp_path, sys.executable, "app.py"))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert "beside.py" in {name.rpartition("/")[2] for name in found}
    assert peak < 100 << 20


@pytest.mark.parametrize("text", ["${", "${x", "${x:-", "${x:-/y}", "~/", "$A", "A=$A:"])
def test_a_shell_s_script_of_a_megabyte_takes_neither_gigabytes_nor_hours(tmp_path: Path, text: str) -> None:
    # To look for the end of each variable, which has none, would not end within the test's time limit.
    (tmp_path / "run.sh").write_text(f"{text * ((1 << 20) // len(text) - 20)} sh beside.sh\n")
    (tmp_path / "beside.sh").write_text("")
    tracemalloc.start()
    try:
        found = named(workload(tmp_path, "sh", "run.sh", A="x" * 5000))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert "beside.sh" in {name.rpartition("/")[2] for name in found}
    assert peak < 100 << 20


def test_scripts_that_start_one_another_are_followed_however_many(tmp_path: Path) -> None:
    for number in range(500):
        (tmp_path / f"{number}.sh").write_text(f"sh {number + 1}.sh\n")
    (tmp_path / "500.sh").write_text("")
    found = named(workload(tmp_path, "sh", "0.sh"))
    assert "500.sh" in {name.rpartition("/")[2] for name in found}


@pytest.mark.parametrize("said", ["before", "later"])
def test_imports_are_followed_in_bounded_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str) -> None:
    monkeypatch.setattr("xpucached.host.python_modules._MOST_LOOKUPS", 300)
    (tmp_path / "app.py").write_text("".join(f"import m{number}\n" for number in range(1000)) + "import beside")
    roots = [tmp_path / "roots" / str(number) for number in range(1000)]
    for root in roots:
        root.mkdir(parents=True)
    added = "\n".join(f"sys.path.append('roots/{root.name}')" for root in roots)
    (tmp_path / "beside.py").write_text(added if said == "later" else "")
    looked: list[str] = []
    is_file = digests.is_file

    def note(path: str) -> bool:
        looked.append(path)
        return is_file(path)

    monkeypatch.setattr(python_imports, "is_file", note)
    before = ":".join(map(str, roots)) if said == "before" else ""
    assert "app.py" in named(workload(tmp_path, sys.executable, "app.py", PYTHONPATH=before))
    assert len(looked) < 1000


@pytest.mark.parametrize("way", ["imports", "programs"])
def test_interpreters_that_were_seen_are_followed_within_one_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    monkeypatch.setattr("xpucached.host.python_modules._MOST_LOOKUPS", 300)
    (tmp_path / "app.py").write_text("".join(f"import m{number}\n" for number in range(1000)))
    (tmp_path / "beside.py").touch()
    looked: list[str] = []
    is_file = digests.is_file

    def note(path: str) -> bool:
        looked.append(path)
        return is_file(path)

    for module in ("dependencies", "python_imports"):
        monkeypatch.setattr(f"xpucached.host.{module}.is_file", note)
    words = (sys.executable, "app.py") if way == "imports" else ("sh",) * 100
    places = ":".join(f"/nowhere/{number}" for number in range(100))
    seen = [Workload((*words, str(number)), tmp_path, {"PATH": places, "PYTHONPATH": places}) for number in range(64)]
    found = proofs.interpreted(seen[0], [*seen, Workload((sys.executable, "beside.py"), tmp_path)])
    # What a word names by its path is found all the same.
    assert found[f"{tmp_path}/beside.py"] is Role.SCRIPT
    assert len(looked) < 2000


def test_what_a_program_has_open_is_not_looked_for_among_what_we_have(tmp_path: Path) -> None:
    """A shell hands its Python a script so, ``python3 <(…)``; here it may be the catalog that has this number."""
    (tmp_path / "ours").write_text("import beside\n")
    (tmp_path / "beside.py").touch()
    with (tmp_path / "ours").open() as file:
        for name in (f"/dev/fd/{file.fileno()}", f"/proc/self/fd/{file.fileno()}"):
            of = workload(tmp_path, sys.executable, name)
            assert proofs.interpreted(of, [of]).keys() & {name, str(tmp_path / "ours")} == set()
            assert {one.path for one in proofs.named(of, {}).named} & {name, str(tmp_path / "ours")} == set()


def test_a_program_in_shared_memory_is_one() -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as place:
        Path(place, "app.py").touch()
        of = workload(Path(place), sys.executable, "app.py")
        assert f"{place}/app.py" in {one.path for one in proofs.named(of, {}).named}


def test_what_differs_in_its_arguments_alone_takes_no_room_from_other_scripts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("xpucached.host.python_modules._MOST_LOOKUPS", 1000)
    (tmp_path / "train.py").write_text("".join(f"import m{number}\n" for number in range(100)))
    (tmp_path / "eval.py").write_text("import beside\n")
    (tmp_path / "beside.py").touch()
    ranks = [Workload((sys.executable, "-u", "train.py", f"--rank={one}"), tmp_path) for one in range(50)]
    found = proofs.interpreted(ranks[0], [*ranks, Workload((sys.executable, "eval.py"), tmp_path)])
    assert found[f"{tmp_path}/beside.py"] is Role.MODULE


@pytest.mark.parametrize("way", ["argument", "script"])
def test_what_directories_hold_takes_no_room_from_what_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    monkeypatch.setattr("xpucached.host.python_modules.MOST", 300)
    held, work = tmp_path / "held", tmp_path / "work"
    for place in (held, work):
        place.mkdir()
    for number in range(400):
        (held / str(number)).touch()
    (work / "app.py").write_text("import helper\n")
    (work / "helper.py").touch()
    (work / "run.sh").write_text(f"export DATA={held}\nexec {sys.executable} app.py\n")
    command = ("sh", "run.sh") if way == "script" else ("env", f"DATA={held}", sys.executable, "app.py")
    found = named(workload(work, *command))
    assert (found["app.py"], found["helper.py"]) == (Role.SCRIPT, Role.MODULE)
    assert (f"{held}/0" in found, len(proofs.named(workload(work, *command), {}).named)) == (True, 300)


def test_what_lies_beside_the_pythons_of_which_a_script_takes_one_is_none_of_a_program_s(tmp_path: Path) -> None:
    """As pyenv has it: its ``python3`` in PATH is a shell's script, which names where all of them lie."""
    shims, work = tmp_path / "pyenv" / "shims", tmp_path / "work"
    for place in (shims, work):
        place.mkdir(parents=True)
    (tmp_path / "pyenv" / "another").touch()
    (tmp_path / "pyenv" / "chooser").touch()
    root = shims.parent
    (shims / "python3").write_text(f'#!/bin/sh\nexport ROOT="{root}"\nexec "{root}/chooser" exec python3 "$@"\n')
    (shims / "python3").chmod(0o755)
    (work / "app.py").write_text("import helper\n")
    (work / "helper.py").touch()
    found = named(workload(work, "python3", "app.py", PATH=f"{shims}:{os.environ['PATH']}"))
    assert {"app.py", "helper.py", f"{shims}/python3", f"{root}/chooser"} <= found.keys()
    assert f"{root}/another" not in found


@pytest.mark.parametrize("where", ["work/.python-version", ".python-version", "pyenv/version"])
def test_which_python_such_a_script_takes_is_part_of_what_a_program_needs(tmp_path: Path, where: str) -> None:
    shims, work = tmp_path / "pyenv" / "shims", tmp_path / "work"
    for place in (shims, work):
        place.mkdir(parents=True)
    (shims / "python3").write_text("#!/bin/sh\nexec chooser\n")
    (shims / "python3").chmod(0o755)
    (tmp_path / "pyenv" / "version").write_text("3.11\n")
    (tmp_path / where).write_text("3.11\n")
    needs = proven(workload(work, "python3", "app.py", PATH=f"{shims}:{os.environ['PATH']}"))
    (tmp_path / where).write_text("3.12\n")
    (said,) = changes(needs, work)
    assert said.endswith("version was modified")


def proven(of: Workload, *libraries: Path) -> tuple[Dependency, ...]:
    """Return what a pass of which nothing changed needed."""
    return proofs.needed(of, proofs.named(of, {}), [str(one) for one in libraries], (), (), ())


def changes(needs: tuple[Dependency, ...], directory: Path) -> tuple[str, ...]:
    return DependencyChecker().compare(needs, str(directory)).changes


def install(site: Path, name: str, version: str, content: str = "") -> None:
    place = site / f"{name}-{version}.dist-info"
    place.mkdir(parents=True)
    (place / "RECORD").write_text(f"{name}/__init__.py,{content},\n")


# -- what is named ----------------------------------------------------------------------------------------------------


def test_a_python_program_is_followed_through_its_own_modules(tmp_path: Path) -> None:
    (tmp_path / "parts" / "inner").mkdir(parents=True)
    for name, text in {
        "app.py": "import helper, json\nfrom parts import (first,\n second as other)\nimport importlib\n"
        "importlib.import_module('late')\n",
        "helper.py": "import app\nfrom . import nowhere\n",
        "late.py": "",
        "unused.py": "",
        "parts/__init__.py": "",
        "parts/first.py": "from .inner.deep import thing\nfrom .. import helper\n",
        "parts/second.py": "",
        "parts/inner/__init__.py": "from ..third import *\n",
        "parts/inner/deep.py": "",
        "parts/third.py": "",
    }.items():
        (tmp_path / name).write_text(text)
    found = named(workload(tmp_path, sys.executable, "-u", "-W", "ignore", "app.py", "--unused=unused.py"))
    assert {name for name, role in found.items() if role is Role.MODULE} == {
        *("helper.py", "late.py", "parts/__init__.py", "parts/first.py", "parts/second.py", "parts/third.py"),
        *("parts/inner/__init__.py", "parts/inner/deep.py"),
    }
    assert (found["app.py"], found["unused.py"], found[sys.executable]) == (Role.SCRIPT, Role.ARGUMENT, Role.PROGRAM)


@pytest.mark.parametrize(
    "command",
    [
        ("sh", "-c", "cd . && {python} app.py | cat"),
        ("bash", "-euo", "pipefail", "-c", "cd .; {python} app.py; echo done"),
        ("sh", "-ce", "(exec {python} app.py>log)"),
        ("sh", "-c", "echo 'it; {python} app.py"),
        ("sh", "-o", "errexit", "run.sh"),
        ("env", "A=1", "{python}", "app.py"),
        ("{python}", "-m", "app"),
        ("{python}", "-um", "app"),
        ("{python}", "-mapp"),
        ("{python}", "-Wignore", "app.py"),
        ("{python}", "-cimport sys; import app"),
        ("{python}", "-c", "if True: import app"),
        ("{python}", "-c", "import app"),
        ("sh", "run.sh"),
        ("sh", "code.sh"),
        ("./run.sh",),
        ("./tool",),
        ("env", "-S", "python3 app.py"),
        ("env", "-vSA=1 python3 -u app.py"),
        ("env", "-i", "--split-string=python3 -m app"),
        ("env", "--split-string", "-u A -S 'python3 app.py'"),
        ("env", "-S", "${{CHOSEN}} app.py"),
        ("sh", "-c", "env -S 'python3 app.py'"),
        ("./first",),
        ("./second",),
        ("env", "A=1", "./run.sh"),
        ("nice", "-n", "3", "./tool"),
        ("env", "tool"),
        ("sh", "-c", "exec ./tool"),
        ("sh", "-c", ". ./code.sh"),
        ("sh", "outer.sh"),
        ("fish", "-c", "source outer.sh"),
        ("sh", "here.sh"),
    ],
)
def test_however_a_program_is_started_its_modules_are_seen(tmp_path: Path, command: tuple[str, ...]) -> None:
    (tmp_path / "app.py").write_text("import helper\n")
    (tmp_path / "helper.py").write_text("")
    (tmp_path / "run.sh").write_text(f"#!/bin/sh\nexec {sys.executable} app.py\n")
    (tmp_path / "code.sh").write_text(f"{sys.executable} -u -c 'import app; app.run()'\n")
    (tmp_path / "outer.sh").write_text("cd .\n. ./second.sh\n")
    (tmp_path / "second.sh").write_text("exec ./run.sh\n")
    (tmp_path / "here.sh").write_text(f"{sys.executable} - <<END\nimport app\nEND\n")
    (tmp_path / "tool").write_text(f"#!{sys.executable}\nimport app\n")
    (tmp_path / "first").write_text("#!/usr/bin/env -S A=1 python3 -u\nimport app\n")
    (tmp_path / "second").write_text("#!/usr/bin/env --split-string=python3 -u\nimport app\n")
    for name in ("run.sh", "tool", "first", "second"):
        (tmp_path / name).chmod(0o755)
    words = (word.format(python=sys.executable) for word in command)
    path = f"{tmp_path}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    found = named(workload(tmp_path, *words, PATH=path, CHOSEN="python3"))
    assert {"app.py", "helper.py"} <= found.keys()


def test_what_a_script_reads_as_its_own_names_no_directory_of_the_program_s(tmp_path: Path) -> None:
    """As a virtual environment's ``activate`` does, which names all of it."""
    work = tmp_path / "work"
    for place in (work, tmp_path / "venv" / "bin"):
        place.mkdir(parents=True)
    (tmp_path / "venv" / "another").touch()
    (tmp_path / "venv" / "bin" / "activate").write_text(f"VIRTUAL_ENV={tmp_path}/venv\n")
    (work / "app.py").touch()
    (work / "run.sh").write_text("#!/bin/sh\n. ../venv/bin/activate\nexec python3 app.py\n")
    (work / "run.sh").chmod(0o755)
    for command in (("./run.sh",), ("sh", "-c", ". ../venv/bin/activate && python3 app.py")):
        found = named(workload(work, *command))
        assert {"app.py", f"{tmp_path}/venv/bin/activate"} <= found.keys()
        assert f"{tmp_path}/venv/another" not in found


@pytest.mark.parametrize(
    "text",
    [
        'cd "$(dirname "$0")" || exit\nexec {python} app.py',
        "cd `dirname $0`; {python} app.py <in >out",
        'HERE=$(cd "$(dirname "$0")" && pwd)\n{python} "$HERE/app.py"',
        '{python} "${{BASH_SOURCE%/*}}/app.py"',
        '{python} "$(dirname "$0")/app.py"',
        'APP=${{HERE}}/app.py\nexec {python} "$APP"',
        "exec {python} $PROJECT/app.py",
        'export PYTHONPATH="$HERE/lib:$PYTHONPATH"; {python} -c "import helper"; {python} "$HERE/app.py"',
        'export PYTHONPATH="$HERE/lib${{PYTHONPATH:+:$PYTHONPATH}}"; {python} "$HERE/app.py"',
        'export PYTHONPATH="${{PYTHONPATH:+$PYTHONPATH:}}$HERE/lib"; {python} "$HERE/app.py"',
        '. "$HERE/env.sh"  # PYTHONPATH\nexec {python} "$HERE/app.py"',
        'cd "$HERE" && source ./env.sh && {python} "$HERE/app.py"  # PYTHONPATH',
        'export PYTHONPATH="$HERE/lib:$HERE"; exec "${{NONE:-python3}}" -m app',
        'export PYTHONPATH="$HERE/lib:$HERE"; exec $CHOSEN -m app',
        'export PYTHONPATH="$(cd "$(dirname "$0")" && pwd)/lib:$PYTHONPATH"; {python} "$HERE/app.py"',
        'export PYTHONPATH="$(cd "$(dirname "$0")/lib" && pwd)"; {python} "$HERE/app.py"',
        'export PYTHONPATH="$(dirname "$(realpath "$0")")/lib"; {python} "$HERE/app.py"',
        'export PYTHONPATH=$(dirname $(readlink -f $0))/lib; {python} "$HERE/app.py"',
        'export PYTHONPATH="$(cd "$(dirname "$(readlink -f "$0")")" && pwd)/lib"; {python} "$HERE/app.py"',
        'export PYTHONPATH=`dirname $0`/lib; {python} "$HERE/app.py"',
        'export PYTHONPATH=$PYTHONPATH:`pwd`/lib; {python} "$HERE/app.py"',
        '. "$(dirname "$0")/env.sh"  # PYTHONPATH\nexec {python} "$HERE/app.py"',
    ],
)
def test_what_a_shell_s_script_starts_counts_wherever_that_lies(tmp_path: Path, text: str) -> None:
    place = tmp_path / "project"
    (place / "lib").mkdir(parents=True)
    (tmp_path / "work").mkdir()
    (place / "run.sh").write_text(text.format(python=sys.executable))
    (place / "env.sh").write_text('export PYTHONPATH="$HERE/lib"\n')
    module = place / ("lib/helper.py" if "PYTHONPATH" in text else "helper.py")
    (place / "app.py").write_text("import helper\n")
    module.write_text("")
    given = {"PROJECT": str(place), "PYTHONPATH": "/nowhere", "CHOSEN": "python3"}
    needs = proven(workload(tmp_path / "work", "sh", str(place / "run.sh"), **given))
    for file in (place / "app.py", module):
        file.write_text("another one\n")
    assert set(changes(needs, place)) == {"app.py was modified", f"{module.relative_to(place)} was modified"}


@pytest.mark.parametrize(
    "goes",
    [
        'cd "$(dirname "$0")"',
        "cd `dirname $0`",
        'cd -P -- "${0%/*}" || exit',
        'cd "$( cd "$( dirname "${BASH_SOURCE[0]}" )" && pwd )"',
        'HERE="$(cd "$(dirname "$0")" && pwd)"; pushd "$HERE"',
        "cd $PROJECT",
        'cd "$TOP/project"',
        'cd "$(dirname "$0")/sub/.."',
        "cd -- ../project",
    ],
)
def test_what_lies_where_a_script_goes_by_what_it_computes_counts(tmp_path: Path, goes: str) -> None:
    place, work = tmp_path / "project", tmp_path / "work"
    work.mkdir()
    (place / "models/m").mkdir(parents=True)
    (place / "models/m/config.json").write_text("{}")
    (place / "models/other").touch()
    (place / "run.sh").write_text(f"{goes}\nexec {sys.executable} -c pass --model models/m --save=log -\n")
    needs = proven(workload(work, "bash", str(place / "run.sh"), PROJECT=str(place), TOP=str(tmp_path)))
    (place / "log").touch()
    (place / "models/other").write_text("not its own")
    assert changes(needs, place) == ()
    (place / "models/m/config.json").write_text('{"a": 1}')
    assert set(changes(needs, place)) == {"models/m/config.json was modified"}


@pytest.mark.parametrize(
    "goes",
    [
        'cd "$(dirname "$0")"',
        'HERE="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"; cd "$HERE"',
        'cd "$HERE/"',
        'cd "$HERE/sub/.."',
        'cd "$HERE/../project"',
        "cd /; cd $PROJECT",
    ],
)
def test_what_lies_beside_where_a_script_goes_is_another_s(tmp_path: Path, goes: str) -> None:
    place, work = tmp_path / "project", tmp_path / "work"
    for name in ("models/m/config.json", "logs/access", "sub/x", "../data/x"):
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).touch()
    work.mkdir()
    words = "etc run usr tmp home var data work project"
    (place / "run.sh").write_text(f"{goes}\n# {words}\nexec ./project --model models/m\n")
    found = proofs.named(workload(work, "bash", str(place / "run.sh"), PROJECT=str(place)), {}).named
    assert [one.path for one in found if one.role is Role.FOLDER] == [str(place / "models/m")]


@pytest.mark.parametrize(
    "goes",
    [
        'cd "$(dirname "$0")/.."',
        "cd `dirname $0`/..",
        'cd "${0%/*}/.."',
        'cd "$HERE/.."',
        'TOP="$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/.." && pwd)"; cd "$TOP"',
        'cd "$(dirname "$0")/../../project"',
    ],
)
def test_a_script_may_go_up_from_where_it_lies(tmp_path: Path, goes: str) -> None:
    place, work = tmp_path / "project", tmp_path / "work"
    for name in ("models/m/config.json", "bin/run.sh", "logs/access"):
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).touch()
    work.mkdir()
    (place / "bin/run.sh").write_text(f"{goes}\nexec ./project --model models/m\n")
    found = proofs.named(workload(work, "bash", str(place / "bin/run.sh")), {}).named
    assert [one.path for one in found if one.role is Role.FOLDER] == [str(place / "models/m")]


@pytest.mark.parametrize("before", [("env",), ("sh", "-c")])
def test_modules_are_looked_for_in_each_directory_that_a_command_gives(tmp_path: Path, before: tuple[str, ...]) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "app.py").touch()
    words = ("PYTHONPATH=src:lib", sys.executable, "-m", "app")
    assert "lib/app.py" in named(workload(tmp_path, *before, *(words if before == ("env",) else [" ".join(words)])))


@pytest.mark.parametrize(
    "text",
    [
        "python3 ~/app.py",
        "VENV=~/env; python3 ~/app.py",
        'exec python3 "${{APP_HOME:-{far}}}/app.py"',
        'exec python3 "${{APP_HOME={far}}}/app.py"',
        'APP_HOME="${{UNSET-{far}}}/app.py"; exec python3 "$APP_HOME"',
        '. ~/env.sh; exec python3 "${{GIVEN:-/nowhere}}/app.py"',
        'PYTHONPATH="${{UNSET:-{far}}}" python3 -m app',
        "PYTHONPATH=~/:$PYTHONPATH python3 -m app",
        "export PYTHONPATH+=:{far}; python3 -m app",
    ],
)
@pytest.mark.parametrize("way", ["script", "text"])
def test_what_a_shell_knows_of_homes_and_of_what_is_not_set_counts(tmp_path: Path, text: str, way: str) -> None:
    far, work = tmp_path / "far", tmp_path / "work"
    far.mkdir()
    work.mkdir()
    for name in ("app.py", "env.sh"):
        (far / name).touch()
    text = text.format(far=far)
    (work / "run.sh").write_text(text)
    command = ("sh", "run.sh") if way == "script" else ("bash", "-c", text)
    found = named(workload(work, *command, HOME=str(far), GIVEN=str(far)))
    assert f"{far}/app.py" in found
    assert ("env.sh" not in text) or f"{far}/env.sh" in found


@pytest.mark.parametrize(
    ("text", "file"),
    [
        ("import sys; sys.path.insert(0, 'src')\nimport part\n", "src/part.py"),
        ("sys.path.append(os.path.join(os.path.dirname(__file__), '..', 'lib'))\nimport part\n", "../lib/part.py"),
        ("sys.path.append(str(Path(__file__).parent.parent))\nimport part\n", "../part.py"),
        ("import os, \\\n  part\n", "part.py"),
        ("from parts import (\n  one,  # the first (and more)\n  two,\n)\n", "parts/two.py"),
        ("from parts import one, \\\n  two\n", "parts/two.py"),
        ("sign = '#'; from parts import one, two\n", "parts/two.py"),
        ("\ufeffimport part\n", "part.py"),
        ("importlib.import_module('.two', package='parts')\n", "parts/two.py"),
    ],
)
@pytest.mark.parametrize("started", ["app.py", "."])
def test_an_import_is_followed_however_it_is_written_and_found(
    tmp_path: Path, text: str, file: str, started: str
) -> None:
    (tmp_path / "app").mkdir()
    (tmp_path / "app" / ("__main__.py" if started == "." else started)).write_text(text)
    part = tmp_path / "app" / file
    part.parent.resolve().mkdir(exist_ok=True)
    part.write_text("")
    needs = proven(workload(tmp_path / "app", sys.executable, started))
    part.write_text("another one\n")
    assert changes(needs, tmp_path) == (f"{part.resolve().relative_to(tmp_path)} was modified",)


@pytest.mark.parametrize(
    "says",
    [
        "import os.path as osp, sys\nsys.path.insert(0, osp.join(osp.dirname(__file__), '..', 'lib'))\n",
        "import sys, more\nsys.path.append('../far')\n",
    ],
)
def test_a_module_is_found_where_another_one_that_is_imported_with_it_says(tmp_path: Path, says: str) -> None:
    for name, text in {
        "tools/test.py": "import _init_paths\nimport models.net\nfrom models import layers\n",
        "tools/_init_paths.py": says,
        "far/more.py": "import sys\nsys.path.append('../lib')\n",
        "lib/models/__init__.py": "import parts\n",
        "lib/models/net.py": "",
        "lib/models/layers.py": "",
        "lib/parts.py": "",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    found = named(workload(tmp_path / "tools", sys.executable, "test.py"))
    for name in ("models/__init__", "models/net", "models/layers", "parts"):
        assert found[f"{tmp_path}/lib/{name}.py"] is Role.MODULE


@pytest.mark.parametrize(
    "says",
    [
        "sys.path.insert(0, os.environ['LIBS'])",
        "sys.path.insert(0, os.path.join(os.environ['TOP'], 'lib'))",
        "sys.path.append(os.path.expanduser('~/lib'))",
        "top = os.environ.get('TOP')\nsys.path.append(f'{top}/lib')",
    ],
)
def test_a_module_is_found_where_variables_and_the_home_say(tmp_path: Path, says: str) -> None:
    (tmp_path / "far/lib").mkdir(parents=True)
    (tmp_path / "far/lib/helper.py").touch()
    (tmp_path / "deep/in/the/app").mkdir(parents=True)
    (tmp_path / "deep/in/the/app/app.py").write_text(f"import os, sys\n{says}\nimport helper\n")
    variables = {"LIBS": f"{tmp_path}/far/lib", "TOP": f"{tmp_path}/far", "HOME": f"{tmp_path}/far"}
    found = named(workload(tmp_path, sys.executable, "deep/in/the/app/app.py", **variables))
    assert found.get("far/lib/helper.py") is Role.MODULE


@pytest.mark.parametrize(
    "says", ["runpy.run_path('helper.py')", "exec(open('work/other.py').read())", "load('name', 'work/other.py')"]
)
def test_a_file_that_is_run_or_loaded_by_its_name_is_followed(tmp_path: Path, says: str) -> None:
    (tmp_path / "app").mkdir()
    (tmp_path / "work").mkdir()
    (tmp_path / "app/helper.py").write_text("import part\n")
    (tmp_path / "app/part.py").touch()
    (tmp_path / "work/other.py").write_text("import part\n")
    (tmp_path / "work/part.py").touch()
    (tmp_path / "app/app.py").write_text(f"{says}\n")
    found = named(workload(tmp_path, sys.executable, "app/app.py"))
    place, name = ("app", "helper") if "helper" in says else ("work", "other")
    assert {one for one, role in found.items() if role is Role.MODULE} == {f"{place}/{name}.py", f"{place}/part.py"}


@pytest.mark.parametrize("way", ["word", "script", "here"])
def test_what_a_text_without_a_file_adds_is_searched_from_where_the_program_works(tmp_path: Path, way: str) -> None:
    (tmp_path / "work/src").mkdir(parents=True)
    (tmp_path / "work/src/helper.py").touch()
    (tmp_path / "above.py").touch()
    text = "import sys; sys.path.append('src'); import helper, above"
    ways = {"script": f'python3 -c "{text}"', "here": f"python3 - <<X\nimport sys\n{text}\nX"}
    (tmp_path / "run.sh").write_text(ways.get(way, ""))
    command = ("python3", "-c", text) if way == "word" else ("sh", "../run.sh")
    found = named(workload(tmp_path / "work", *command))
    # What lies above a file may be what that adds; such a text lies nowhere.
    assert (found.get("src/helper.py"), f"{tmp_path}/above.py" in found) == (Role.MODULE, False)


def test_a_loader_names_its_function_files_and_options(tmp_path: Path) -> None:
    (tmp_path / "nets.py").write_text("import blocks\n")
    (tmp_path / "blocks.py").write_text("")
    (tmp_path / "prompts").write_text("a")
    (tmp_path / "weights").mkdir()
    (tmp_path / "weights" / "w.bin").write_bytes(b"1")
    exercise = RunSpec(
        Loader.PYTHON,
        sys.executable,
        "nets:make",
        str(tmp_path / "prompts"),
        device="cpu",
        options={"folder": str(tmp_path / "weights")},
    )
    found = named(Workload((), tmp_path, {}, exercise=exercise))
    assert {name: role for name, role in found.items() if not name.startswith("/")} == {
        "nets.py": Role.MODULE,
        "blocks.py": Role.MODULE,
        "prompts": Role.ARGUMENT,
        "weights": Role.FOLDER,
        "weights/w.bin": Role.ARGUMENT,
    }


def test_of_a_model_s_folder_everything_counts_also_if_it_is_where_one_stood(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts/model.safetensors").write_bytes(b"x")
    exercise = RunSpec(loader=Loader.TRANSFORMERS, python=sys.executable, target=str(tmp_path), inputs="random")
    for where in (tmp_path, tmp_path / "parts"):
        found = proofs.named(Workload((), where, {}, exercise=exercise), {}).named
        told = {one.path for one in found if one.role is Role.ARGUMENT}
        assert told >= {str(tmp_path / "config.json"), str(tmp_path / "parts/model.safetensors")}


@pytest.mark.parametrize("name", ["narrow\u202fspace", "ideographic\u3000space", "tab\tulator", "a\u202eb"])
def test_whatever_a_directory_is_called_its_files_count(tmp_path: Path, name: str) -> None:
    folder = tmp_path / name
    folder.mkdir()
    (folder / "app.py").write_text("import beside\n")
    (folder / "beside.py").write_text("A = 1\n")
    (folder / "libops.so").write_bytes(b"1")
    told = json.dumps({"mapped": [str(folder / "libops.so")]}).encode()
    seen = read_seen(told)
    assert seen is not None
    needs = proven(workload(folder, sys.executable, "app.py"), *map(Path, seen.mapped))
    for file in ("beside.py", "libops.so"):
        (folder / file).write_text("another one\n")

    assert set(changes(needs, folder)) == {"beside.py was modified", "libops.so was modified"}


def test_what_a_directory_holds_by_a_link_counts(tmp_path: Path) -> None:
    for name, text in (("first", "1"), ("second", "2")):
        (tmp_path / name / "parts").mkdir(parents=True)
        (tmp_path / name / "parts/config.json").write_text(text)
    work, model = tmp_path / "work", tmp_path / "model"
    work.mkdir()
    model.mkdir()
    (model / "unet").symlink_to(tmp_path / "first")
    # Loops, and ways to where the program itself works, are not gone.
    (tmp_path / "first/parts/back").symlink_to(model)
    (model / "self").symlink_to(".")
    (model / "up").symlink_to(tmp_path)
    (model / "work").symlink_to(work)
    (work / "log").touch()
    of = workload(work, "true", str(model))
    needs = proven(of)
    assert {one.path.removeprefix(f"{model}/") for one in needs if one.role is Role.ARGUMENT} == {
        "unet/parts/config.json"
    }
    (model / "unet").unlink()
    (model / "unet").symlink_to(tmp_path / "second")
    assert f"{model}/unet/parts/config.json was replaced" in changes(needs, work)


def test_a_file_counts_though_its_name_has_two_lines(tmp_path: Path) -> None:
    (tmp_path / "two\nlines").write_text("1")
    needs = proven(workload(tmp_path, "true", "two\nlines"))
    (tmp_path / "two\nlines").write_text("2")
    assert changes(needs, tmp_path) == ("two\nlines was modified",)


def test_nothing_that_is_no_file_is_touched_and_nothing_is_without_bounds(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "back").symlink_to(tmp_path)
    os.mkfifo(tmp_path / "deep" / "pipe.py")
    with (tmp_path / "huge").open("wb") as file:
        file.truncate(1 << 42)
    (tmp_path / "nasty.py").write_text("from a import (" * 60_000)
    (tmp_path / "endless.py").symlink_to("/dev/zero")
    words = [
        "pipe",
        "loop",
        "deep",
        "huge",
        "/proc/self/mem",
        "/dev/zero",
        "/proc/self/fd/0",
        "/sys/kernel",
        "x" * 9999,
    ]
    answer: list[tuple[Dependency, ...]] = []
    command = [sys.executable, "nasty.py", "endless.py", "deep/pipe.py", *words, *(f"--in={word}" for word in words)]

    def look() -> None:
        answer.append(proven(workload(tmp_path, *command)))

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    thread.join(60)
    assert answer
    paths = {one.path.removeprefix(f"{tmp_path}/"): one for one in answer[0]}
    assert not {path for path in paths if path.startswith(("/proc", "/sys", "/dev"))}
    assert not {"pipe", "loop", "deep/pipe.py", "endless.py"} & paths.keys()
    # It is noted, but of so much only size and times.
    assert (paths["huge"].size, paths["huge"].digest) == (1 << 42, "")
    assert changes(answer[0], tmp_path) == ()


def a_python(tmp_path: Path, *, system: bool) -> tuple[Path, Path]:
    """Make the files of an interpreter and of an environment of it; give that one's interpreter, and where all lies."""
    base = tmp_path / "base"
    for place in (base, tmp_path / "venv"):
        (place / "bin").mkdir(parents=True)
    (base / "bin" / "python3.11").touch(0o755)
    (tmp_path / "venv" / "bin" / "python").symlink_to(base / "bin" / "python3.11")
    settings = f"home = {base}/bin\ninclude-system-site-packages = {str(system).lower()}\n"
    (tmp_path / "venv" / "pyvenv.cfg").write_text(settings)
    for place in (base, tmp_path / "venv", tmp_path / "home" / ".local"):
        install(place / "lib/python3.11/site-packages", "torch", "2.8.0")
    return tmp_path / "venv/bin/python", tmp_path


@pytest.mark.parametrize("whose", ["base", "venv", "home/.local"])
def test_packages_count_wherever_the_interpreter_looks_for_them(tmp_path: Path, whose: str) -> None:
    (tmp_path / "work").mkdir()
    python, place = a_python(tmp_path, system=True)
    # Environments of conda hold thousands of libraries there.
    many_files.add(place / whose / "lib", (f"lib{number}.so" for number in range(4001)))
    of = workload(tmp_path / "work", str(python), "-c", "import torch", HOME=str(tmp_path / "home"))
    needs = proven(of)
    assert changes(needs, tmp_path) == ()
    site = place / whose / "lib/python3.11/site-packages"
    (site / "torch-2.8.0.dist-info").rename(site / "torch-2.9.0.dist-info")
    assert changes(needs, tmp_path) == ("torch 2.8.0 → 2.9.0",)


@pytest.mark.parametrize(
    "command",
    [
        ("bash", "-c", ". ../venv/bin/activate && python app.py"),
        ("bash", "-lc", "cd . && source ../venv/bin/activate; exec python app.py"),
        ("sh", "-c", "PATH=../venv/bin:$PATH python app.py"),
        ("sh", "-c", 'export PATH="{place}/venv/bin:$PATH"; python app.py'),
        ("env", "PATH={place}/venv/bin:/usr/bin:/bin", "python", "app.py"),
        ("./run.sh",),
        ("sh", "run.sh"),
        ("./path.sh",),
        ("./nested.sh",),
        ("./backticks.sh",),
    ],
)
def test_packages_of_an_environment_that_a_command_or_a_script_enters_count(
    tmp_path: Path, command: tuple[str, ...]
) -> None:
    work = tmp_path / "work"
    work.mkdir()
    a_python(tmp_path, system=False)
    (tmp_path / "venv/bin/activate").write_text(f'VIRTUAL_ENV={tmp_path}/venv\nPATH="$VIRTUAL_ENV/bin:$PATH"\n')
    (work / "app.py").touch()
    (work / "run.sh").write_text('#!/bin/sh\nHERE=$(dirname "$0")\n. "$HERE/../venv/bin/activate"\npython app.py\n')
    (work / "path.sh").write_text('#!/bin/sh\nexport PATH="$(dirname "$0")/../venv/bin:$PATH"\npython app.py\n')
    nested = '#!/bin/sh\nexport PATH="$(cd "$(dirname "$0")/.." && pwd)/venv/bin:$PATH"\npython app.py\n'
    (work / "nested.sh").write_text(nested)
    (work / "backticks.sh").write_text("#!/bin/sh\nexport PATH=`dirname $0`/../venv/bin:$PATH\npython app.py\n")
    for script in work.glob("*.sh"):
        script.chmod(0o755)
    needs = proven(workload(work, *(word.format(place=tmp_path) for word in command)))
    assert changes(needs, tmp_path) == ()
    site = tmp_path / "venv/lib/python3.11/site-packages"
    (site / "torch-2.8.0.dist-info").rename(site / "torch-2.9.0.dist-info")
    assert "torch 2.8.0 → 2.9.0" in changes(needs, tmp_path)


def test_packages_that_the_interpreter_does_not_see_change_nothing(tmp_path: Path) -> None:
    python, _ = a_python(tmp_path, system=False)
    install(tmp_path / "base/lib/python3.10/site-packages", "torch", "1")
    given = {"HOME": str(tmp_path / "home")}
    assert not any("home" in one or "base/lib" in one for one in named(workload(tmp_path, str(python), **given)))
    alone = named(workload(tmp_path, str(tmp_path / "base/bin/python3.11"), PYTHONNOUSERSITE="1", **given))
    assert not any("home" in one or "3.10" in one for one in alone)


@pytest.mark.parametrize("how", ["path", "finder"])
def test_a_package_that_is_installed_to_be_edited_counts_by_its_modules(tmp_path: Path, how: str) -> None:
    python, _ = a_python(tmp_path, system=False)
    source = tmp_path / "elsewhere" / "app"
    source.mkdir(parents=True)
    (source / "__init__.py").write_text("from app import parts\n")
    (source / "parts.py").touch()
    site = tmp_path / "venv/lib/python3.11/site-packages"
    if how == "path":
        (site / "__editable__.app-1.pth").write_text(f"{source.parent}\n")
    else:
        (site / "__editable__.app-1.pth").write_text("import __editable___app_1_finder\n")
        (site / "__editable___app_1_finder.py").write_text(f"MAPPING: dict[str, str] = {{'app': '{source}'}}\n")
    found = named(workload(tmp_path, str(python), "-m", "app"))
    assert {name: role for name, role in found.items() if "elsewhere" in name} == {
        "elsewhere/app/__init__.py": Role.MODULE,
        "elsewhere/app/parts.py": Role.MODULE,
    }


@pytest.mark.parametrize("name", ["local.pth", "easy-install.pth", "app.egg-link", "sitecustomize.py"])
def test_what_lies_among_packages_without_being_one_s_counts(tmp_path: Path, name: str) -> None:
    python, _ = a_python(tmp_path, system=False)
    site = tmp_path / "venv/lib/python3.11/site-packages"
    (site / name).write_text("/srv/v1\n")
    needs = proven(workload(tmp_path, str(python), "-c", "import app"))
    assert changes(needs, tmp_path) == ()
    (site / name).write_text("/srv/v2\n")
    assert changes(needs, tmp_path) == (f"{site.relative_to(tmp_path)}/{name} was modified",)


def test_packages_count_of_which_a_python_alone_tells_where_they_lie(tmp_path: Path) -> None:
    site = tmp_path / "now/site-packages"
    for release in ("v1", "v2"):
        install(tmp_path / release / "site-packages", "ops", "1.0", release)
    (tmp_path / "now").symlink_to("v1")
    of = workload(tmp_path, "true")
    told = {str(site / "ops/__init__.py"): Role.MODULE}
    needs = proofs.needed(of, proofs.named(of, {}), [], (), told.items(), ())
    assert changes(needs, tmp_path) == ()
    (tmp_path / "now").unlink()
    (tmp_path / "now").symlink_to("v2")
    assert changes(needs, tmp_path) == ("ops 1.0 was installed anew, with other contents",)


@pytest.mark.parametrize("name", ["conda-meta/state", "etc/conda/activate.d/driver.sh"])
def test_what_an_environment_of_conda_sets_counts(tmp_path: Path, name: str) -> None:
    python, _ = a_python(tmp_path, system=False)
    (tmp_path / "venv" / name).parent.mkdir(parents=True)
    (tmp_path / "venv" / name).write_text("A=1")
    needs = proven(workload(tmp_path, str(python), "-c", ""))
    (tmp_path / "venv" / name).write_text("A=2")
    assert changes(needs, tmp_path) == (f"venv/{name} was modified",)


@pytest.mark.parametrize(
    ("command", "found"),
    [
        ("bash -lc true", ".profile .bash_profile .bashrc .inner"),
        ("bash -o pipefail -ic true", ".profile .bash_profile .bashrc .inner"),
        ("bash --login run.sh", ".profile .bash_profile .bashrc .inner"),
        ("sh -l run.sh", ".profile .inner"),
        ("./login.sh", ".profile .bash_profile .bashrc .inner"),
        ("nice bash -lc true", ".profile .bash_profile .bashrc .inner"),
        ("bash -c true -l", "env.sh"),
        ("bash run.sh -i", "env.sh"),
        ("sh -c true", ""),
        ("zsh -c true", "z/.zshenv"),
        ("zsh -lc true", "z/.zshenv z/.zprofile"),
        ("fish -c true", ".config/fish/config.fish .config/fish/conf.d/a.fish"),
    ],
)
def test_what_a_shell_reads_before_all_else_counts(tmp_path: Path, command: str, found: str) -> None:
    home = tmp_path / "home"
    every = (".profile", ".bash_profile", ".bashrc", ".inner", "z/.zshenv", "z/.zprofile", "env.sh", ".history")
    for name in (*every, ".config/fish/config.fish", ".config/fish/conf.d/a.fish"):
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).touch()
    # What they name is none of the program's: a history is written all the time.
    (home / ".profile").write_text("HISTFILE=~/.history\n[ -f ~/.inner ] && . ~/.inner\n")
    (tmp_path / "run.sh").touch()
    (tmp_path / "login.sh").write_text("#!/bin/bash -l\ntrue\n")
    (tmp_path / "login.sh").chmod(0o755)
    variables = {"HOME": str(home), "ZDOTDIR": str(home / "z"), "XDG_CONFIG_HOME": "", "ENV": "/nowhere"}
    of = workload(tmp_path, *command.split(), **variables, BASH_ENV=str(home / "env.sh"))
    known = {name.removeprefix("home/") for name in named(of) if name.startswith("home/")}
    assert known - {"z", ".config/fish/conf.d"} - {"env.sh"} == set(found.split()) - {"env.sh"}
    assert ("env.sh" in known) is ("bash" in command or "login" in command)


@pytest.mark.parametrize("goes", ["cd srv; ", "cd srv && ", "pushd ./srv >/dev/null\n", "cd top && cd ../srv; cd . ; "])
@pytest.mark.parametrize("config", ["conf.yaml", "--file=conf.yaml", "./conf.yaml"])
def test_of_where_a_shell_goes_only_what_is_named_counts(tmp_path: Path, goes: str, config: str) -> None:
    place = tmp_path / "srv"
    given = "main.py helper.py app.py tool/__main__.py conf.yaml logs/access ../top/any ../conf.yaml"
    for name in given.split():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).touch()
    (place / "main.py").write_text("import helper\n")
    text = f"{goes}python3 -m tool; uvicorn app:main; PYTHONPATH=. exec python3 main.py --root .. --config {config}"
    of = workload(tmp_path, "/bin/bash", "-c", text)
    assert {path: role for path, role in named(of).items() if not path.startswith("/")} == {
        "srv/main.py": Role.SCRIPT,
        "srv/helper.py": Role.MODULE,
        "srv/app.py": Role.MODULE,
        "srv/tool/__main__.py": Role.MODULE,
        "srv/conf.yaml": Role.ARGUMENT,
        "conf.yaml": Role.ARGUMENT,
    }
    (tmp_path / "run.sh").write_text(f"{text}\n")
    assert "srv/logs/access" not in named(workload(tmp_path, "bash", "run.sh"))


@pytest.mark.parametrize(
    "command",
    [
        "uvicorn --app-dir srv main:app --config conf.yaml",
        "gunicorn --chdir=srv --config conf.yaml main:app",
        "uv --directory srv run main.py --config conf.yaml",
        "uv run -q --project=srv main.py --config conf.yaml",
        "poetry -C srv run python3 main.py --config conf.yaml",
        "env -C srv python3 main.py --config conf.yaml",
        "systemd-run --user --scope --working-directory=srv python3 main.py --config conf.yaml",
    ],
)
@pytest.mark.parametrize("way", ["command", "script"])
def test_of_where_a_program_is_told_to_work_only_what_is_named_counts(tmp_path: Path, command: str, way: str) -> None:
    for name in ("main.py", "helper.py", "conf.yaml", "logs/access"):
        (tmp_path / "srv" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "srv" / name).touch()
    (tmp_path / "srv/main.py").write_text("import helper\n")
    (tmp_path / "run.sh").write_text(f"exec {command}\n")
    found = named(workload(tmp_path, *(command.split() if way == "command" else ("sh", "run.sh"))))
    inside = {path for path in found if path.startswith("srv")}
    # A script's words alone do not tell which module a server loads.
    modules = set() if way == "script" and ":" in command else {"srv/main.py", "srv/helper.py"}
    assert inside == {"srv/conf.yaml", *modules}


@pytest.mark.parametrize("command", ["uv run main.py --directory srv", "python3 main.py --project srv", "app -C srv"])
def test_a_directory_that_a_program_is_given_for_something_else_counts_with_all(tmp_path: Path, command: str) -> None:
    (tmp_path / "srv").mkdir()
    (tmp_path / "srv/data").touch()
    (tmp_path / "main.py").touch()
    assert {"srv", "srv/data"} <= named(workload(tmp_path, *command.split())).keys()


@pytest.mark.parametrize("words", ["=" * 100_000, "cd . ; " * 9000, "x=y;" * 9000, "cd; cd -; cd \x01", "."])
def test_where_a_shell_goes_is_followed_in_bounds(tmp_path: Path, words: str) -> None:
    (tmp_path / "sub").mkdir()
    assert named(workload(tmp_path, "/bin/bash", "-c", f"cd sub; {words}"))


def test_a_flood_of_files_is_bounded(tmp_path: Path) -> None:
    for folder in range(6):
        (tmp_path / f"d{folder}").mkdir()
        many_files.add(tmp_path / f"d{folder}", map(str, range(2000)))
    found = proofs.named(workload(tmp_path, "true", *(f"d{folder}" for folder in range(6))), {})
    assert len(found.named) == 10_000


def test_where_no_file_can_be_opened_it_is_not_said_what_a_model_needs(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text("import helper\n")
    (tmp_path / "helper.py").touch()
    (tmp_path / "model").mkdir()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    for command in ((sys.executable, "app.py"), ("true", "model")):
        of = workload(tmp_path, *command)
        assert named(of)
        resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
        try:
            with pytest.raises(OSError, match="Too many open files"):
                named(of)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


# -- what changed -----------------------------------------------------------------------------------------------------


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Return a directory with a program, its module, a library with a short name, an argument and packages."""
    (tmp_path / "app.py").write_text("import helper\n")
    (tmp_path / "helper.py").write_text("A = 1\n")
    (tmp_path / "weights.bin").write_bytes(b"0123456789")
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    library = tmp_path / "env" / "lib" / "libfoo.so.1.2"
    library.parent.mkdir(parents=True)
    library.write_bytes(b"code")
    (library.parent / "libfoo.so.1").symlink_to("libfoo.so.1.2")
    site = tmp_path / "env" / "lib" / "python3.11" / "site-packages"
    install(site, "torch", "2.9.0")
    install(site, "numpy", "2.4.6")
    (site / "torch").mkdir()
    (site / "torch" / "_C.so").write_bytes(b"code")
    return tmp_path


def of_place(place: Path) -> tuple[Workload, tuple[Dependency, ...]]:
    of = workload(place, sys.executable, "app.py", "--weights=weights.bin", "model")
    return of, proven(of, place / "env/lib/libfoo.so.1.2", place / "env/lib/python3.11/site-packages/torch/_C.so")


def upgrade(place: Path) -> None:
    site = place / "env/lib/python3.11/site-packages"
    shutil.rmtree(site / "torch-2.9.0.dist-info")
    install(site, "torch", "2.9.1")


def retarget(place: Path) -> None:
    library = place / "env/lib"
    (library / "libfoo.so.1.3").write_bytes(b"edoc")
    (library / "libfoo.so.1").unlink()
    (library / "libfoo.so.1").symlink_to("libfoo.so.1.3")


def replaced(path: Path, content: bytes) -> None:
    fresh = path.with_name("fresh")
    fresh.write_bytes(content)
    fresh.replace(path)


def edited_in_secret(place: Path) -> None:
    script = place / "app.py"
    then = script.stat()
    script.write_text("import h_lper\n")
    os.utime(script, ns=(then.st_atime_ns, then.st_mtime_ns))


CHANGES: Final[dict[str, tuple[Callable[[Path], object], tuple[str, ...] | None]]] = {
    "script": (lambda p: (p / "app.py").write_text("import helper, sys\n"), ("app.py was modified",)),
    "module": (lambda p: (p / "helper.py").write_text("A = 2\n"), ("helper.py was modified",)),
    "module gone": (lambda p: (p / "helper.py").unlink(), ("helper.py is gone",)),
    "weights": (lambda p: replaced(p / "weights.bin", b"012345678X"), ("weights.bin was replaced",)),
    "folder": (
        lambda p: (p / "model" / "extra").touch(),
        ("files were added to model, or taken away",),
    ),
    "file in folder": (lambda p: (p / "model/config.json").write_text("{ }"), ("model/config.json was modified",)),
    "library": (lambda p: replaced(p / "env/lib/libfoo.so.1.2", b"other"), None),
    "library by its short name": (retarget, ("env/lib/libfoo.so.1 was replaced",)),
    "package": (upgrade, ("torch 2.9.0 → 2.9.1",)),
    "package installed": (
        lambda p: install(p / "env/lib/python3.11/site-packages", "ipex", "1"),
        ("ipex 1 was installed",),
    ),
    "package removed": (
        lambda p: shutil.rmtree(p / "env/lib/python3.11/site-packages/numpy-2.4.6.dist-info"),
        ("numpy 2.4.6 was removed",),
    ),
    "package built anew": (
        lambda p: (p / "env/lib/python3.11/site-packages/torch-2.9.0.dist-info/RECORD").write_text("other"),
        ("torch 2.9.0 was installed anew, with other contents",),
    ),
    "content with the times of before": (
        edited_in_secret,
        ("app.py was modified",),
    ),
}


@pytest.mark.parametrize("case", CHANGES)
def test_a_change_is_noticed_and_named(place: Path, case: str) -> None:
    _, needs = of_place(place)
    assert changes(needs, place) == ()
    change, said = CHANGES[case]
    change(place)
    found = changes(needs, place)
    if said is None:
        said = ("env/lib/libfoo.so.1 was replaced", "env/lib/libfoo.so.1.2 was replaced")
    assert found == said


def test_what_python_keeps_of_modules_in_a_folder_is_no_change_of_it(place: Path) -> None:
    of, needs = of_place(place)
    earlier = proofs.named(of, {})
    # The first pass makes it, or whoever starts the program later.
    (place / "model/__pycache__").mkdir()
    assert changes(needs, place) == ()
    needs = proofs.needed(of, proofs.named(of, {}), (), (), (), (), earlier=earlier)
    (place / "model/extra").touch()
    assert changes(needs, place) == ("files were added to model, or taken away",)


def test_the_same_content_anew_is_no_change_and_is_remembered(place: Path) -> None:
    _, needs = of_place(place)
    for path in [one for one in place.rglob("*") if one.is_file() and not one.is_symlink()]:
        replaced(path, path.read_bytes())
    later = DependencyChecker().compare(needs, str(place))
    assert later.changes == ()
    assert later.needs != needs
    # Now the times are those of the files again: nothing is read any more.
    untouched = DependencyChecker()
    assert untouched.compare(later.needs, str(place)).needs == later.needs
    assert not untouched._read


def test_what_cannot_be_read_or_looked_at_is_unknown(place: Path) -> None:
    _, needs = of_place(place)
    (place / "weights.bin").unlink()
    (place / "weights.bin").symlink_to("weights.bin")
    (place / "helper.py").unlink()
    os.mkfifo(place / "helper.py")
    said = changes(needs, place)
    assert any(one.startswith("weights.bin cannot be looked at (Too many levels") for one in said)
    assert any(one.startswith("helper.py was") for one in said)


def test_packages_that_cannot_be_listed_are_not_called_unchanged(place: Path) -> None:
    _, needs = of_place(place)
    site = place / "env/lib/python3.11/site-packages"
    shutil.rmtree(site)
    site.touch()
    (said,) = (one for one in changes(needs, place) if "which packages" in one)
    assert said == f"{site} cannot be listed (Not a directory): which packages changed is unknown"


@pytest.mark.parametrize("name", ["model", "env/lib/python3.11/site-packages"])
def test_a_directory_of_too_many_names_is_not_called_unchanged(place: Path, name: str) -> None:
    many_files.add(place / name, map(str, range(10_001)))
    _, needs = of_place(place)
    assert changes(needs, place) == ()
    (place / name / "one more").touch()
    (said,) = changes(needs, place)
    assert "more than 10000 names" in said
    assert said.endswith("is unknown")


def test_packages_among_too_many_names_that_change_meanwhile_are_not_proven(place: Path) -> None:
    site = place / "env/lib/python3.11/site-packages"
    many_files.add(site, map(str, range(10_001)))
    interpreter = place / "env/bin/python3"
    interpreter.parent.mkdir()
    interpreter.touch()
    of = workload(place, str(interpreter), "app.py")
    before = proofs.named(of, {})
    install(site, "ipex", "1")
    needs = proofs.needed(of, before, (), (), (), ())
    (packages,) = (one for one in needs if one.role is Role.PACKAGES)
    assert packages.unsettled


@pytest.mark.parametrize("passes", [1, 2])
def test_a_library_in_a_directory_of_the_arguments_that_is_replaced_while_it_runs_is_not_proven(
    tmp_path: Path, passes: int
) -> None:
    """As with ``cd build && ./app``: it is no output of the program's, though it lies there."""
    library = tmp_path / "build/libown.so"
    library.parent.mkdir()
    library.write_bytes(b"1")
    of = workload(tmp_path, "/bin/true", "build")
    first = proofs.named(of, {})
    before, earlier = (first, None) if passes == 1 else (proofs.named(of, {}, [str(library)]), first)
    replaced(library, b"22")
    needs = proofs.needed(of, before, [str(library)], (), (), (), (), (), earlier)
    assert changes(needs, tmp_path) == ("build/libown.so was changed while the run that proved it went on",)
    # The next proof is of the new one, and what each run writes anew is its own work.
    again = proofs.named(of, {})
    assert changes(proofs.needed(of, again, [str(library)], (), (), (), needs), tmp_path) == ()
    replaced(library, b"333")
    assert changes(proofs.needed(of, again, [str(library)], (), (), (), needs), tmp_path) == ()


def test_a_script_in_a_directory_of_the_arguments_that_is_edited_while_it_runs_is_not_proven(tmp_path: Path) -> None:
    script = tmp_path / "sub/app.py"
    script.parent.mkdir()
    script.write_text("A = 1\n")
    of = workload(tmp_path, "/bin/true", "sub")
    before = proofs.named(of, {})
    script.write_text("A = 22\n")
    needs = proofs.needed(of, before, (), (), (), ())
    assert changes(needs, tmp_path) == ("sub/app.py was changed while the run that proved it went on",)
    # What lies in a cache is an output, and so is what each run writes anew.
    assert changes(proofs.needed(of, before, (), (), (), (str(script.parent),)), tmp_path) == ()
    again = proofs.named(of, {})
    script.write_text("A = 333\n")
    assert changes(proofs.needed(of, again, (), (), (), (), needs), tmp_path) == ()
    # What the first pass met otherwise is what the second proved.
    needs = proofs.needed(of, proofs.named(of, {}, ()), (), (), (), (), earlier=again)
    assert changes(needs, tmp_path) == ()
    script.write_text("A = 4444\n")
    assert changes(needs, tmp_path) == ("sub/app.py was modified",)


def test_scripts_that_each_run_writes_by_other_names_and_takes_away_are_outputs(tmp_path: Path) -> None:
    """As of a program that keeps its last few, or clears its directory first: it would never be proven."""
    (tmp_path / "out").mkdir()
    (tmp_path / "out/run-0.py").write_text("A = 1\n")
    of = workload(tmp_path, "/bin/true", "out")
    needs: tuple[Dependency, ...] = ()
    for number in (1, 2, 3):
        before = proofs.named(of, {})
        (tmp_path / f"out/run-{number - 1}.py").unlink()
        (tmp_path / f"out/run-{number}.py").write_text("A = 1\n")
        needs = proofs.needed(of, before, (), (), (), (), needs)
        assert changes(needs, tmp_path) == ()


@pytest.mark.parametrize("suffix", [".py", ".so"])
@pytest.mark.parametrize("passes", [1, 2])
def test_code_in_a_directory_of_the_arguments_that_is_written_by_turns_is_proven(
    tmp_path: Path, suffix: str, passes: int
) -> None:
    """One was there already, the other came later: each was unsettled when the other was not, without end."""
    first, second = (tmp_path / f"out/{name}{suffix}" for name in ("first", "second"))
    first.parent.mkdir()
    first.write_text("A = 1\n")
    of = workload(tmp_path, "/bin/true", "out")
    needs: tuple[Dependency, ...] = ()
    told: list[int] = []
    for number in range(5):
        code = [str(one) for one in (first, second)] if suffix == ".so" else []
        before = proofs.named(of, {}, code if passes == 2 else None)
        for one in (first, second):
            replaced(one, b"A = %d\n" % number)
        needs = proofs.needed(of, before, code, (), (), (), needs)
        told.append(len(changes(needs, tmp_path)))
    assert told == [1, 0, 0, 0, 0]


@pytest.mark.parametrize("name", ["helper.py", "helper.so", "part/helper.py"])
def test_code_that_came_to_a_directory_of_the_arguments_after_the_last_proof_is_no_output(
    tmp_path: Path, name: str
) -> None:
    """Somebody adds a module, and still edits it in the midst of the run that follows: it was taken for left out."""
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub/app.py").write_text("A = 1\n")
    of = workload(tmp_path, "/bin/true", "sub")
    needs = proofs.needed(of, proofs.named(of, {}), (), (), (), ())
    helper = tmp_path / "sub" / name
    helper.parent.mkdir(exist_ok=True)
    helper.write_text("A = 1\n")
    before = proofs.named(of, {})
    replaced(helper, b"A = 22\n")
    code = [str(helper)] if helper.suffix == ".so" else []
    needs = proofs.needed(of, before, code, (), (), (), needs)
    assert changes(needs, tmp_path) == (f"sub/{name} was changed while the run that proved it went on",)


def test_a_proof_of_another_command_left_no_code_out(tmp_path: Path) -> None:
    """Nor is what it loaded forgotten: a library that is replaced in the midst of the first run is not proven."""
    script, library = tmp_path / "sub/app.py", tmp_path / "libown.so"
    script.parent.mkdir()
    script.write_text("A = 1\n")
    library.write_bytes(b"1")
    with contextlib.closing(catalogs.fresh(tmp_path / "catalog.sqlite")) as catalog:
        earlier = Model(ModelName("net"), workload(tmp_path, "/bin/true"))
        catalog.write(add_model, earlier)
        run = catalog.write(begin_run, earlier, WarmReason.NEVER, "", NOW)
        last = proven(earlier.workload, library)
        catalog.write(finish_run, run.id, Outcome.WARMED, (), Attribution(), (), "", "", NOW, needs=last)
        context = Context(loading.load(None, user=True, environ=os.environ), catalog, {}, clock)
        keeper = ProofKeeper(context, StoreFinder(context))
        model = Model(ModelName("net"), workload(tmp_path, "/bin/sh", "-c", "cd sub && python3 app.py"))
        before = keeper.named(model.name, model.workload)
        script.write_text("A = 22\n")
        replaced(library, b"22")
        done = SimpleNamespace(
            mapped=(str(library),), mapped_data=(), interpreters=(), modules=(), bounds=(), places=()
        )
        needs = keeper.needed(model, [before], [done])  # type: ignore[list-item] # all that is asked of it
    assert needs is not None
    went_on = "was changed while the run that proved it went on"
    assert {*changes(needs, tmp_path)} == {f"sub/app.py {went_on}", f"libown.so {went_on}"}


def test_what_the_first_of_two_passes_adds_to_a_directory_does_not_make_its_other_outputs_new(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    generated, of = tmp_path / "sub/gen.py", workload(tmp_path, "/bin/true", "sub")
    generated.write_text("A = 0\n")
    needs, told = tuple[Dependency, ...](), list[int]()
    for number in range(1, 5):
        earlier = proofs.named(of, {})
        replaced(generated, b"A = %d0\n" % number)
        if number == 3:
            (tmp_path / "sub/kernel.txt").touch()
        before = proofs.named(of, {})
        replaced(generated, b"A = %d1\n" % number)
        needs = proofs.needed(of, before, (), (), (), (), needs, earlier=earlier)
        told.append(len(changes(needs, tmp_path)))
    assert told == [1, 0, 0, 0]


def test_packages_that_only_its_libraries_tell_and_that_change_while_it_runs_are_not_proven(place: Path) -> None:
    of, _ = of_place(place)
    site = place / "env/lib/python3.11/site-packages"
    library = str(site / "torch/_C.so")
    before = proofs.named(of, {}, [library])
    (site / "numpy-2.4.6.dist-info").rename(site / "numpy-3.0.dist-info")
    needs = proofs.needed(of, before, [library], (), (), ())
    said = f"{site.relative_to(place)} was changed while the run that proved it went on"
    assert said in changes(needs, place)
    # The next proof is of the new one, and holds.
    needs = proofs.needed(of, proofs.named(of, {}, [library]), [library], (), (), (), needs)
    assert changes(needs, place) == ()
    install(site, "ipex", "1")
    assert changes(needs, place) == ("ipex 1 was installed",)


def test_what_is_too_much_for_one_look_is_read_by_the_next(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    of, needs = of_place(place)
    for path in (place / "app.py", place / "helper.py", place / "weights.bin"):
        os.utime(path, ns=(0, path.stat().st_mtime_ns + 10**9))
    monkeypatch.setattr("xpucached.host.digests._MOST", 16)
    comparer = DependencyChecker()
    unread = "was written anew, and has not been read yet: whether it changed is unknown"
    seen = []
    for _ in range(4):
        compared = comparer.compare(needs, str(of.directory))
        assert all(unread in one for one in compared.changes)
        seen.append(len(compared.changes))
        needs = compared.needs
    assert seen[0] > 0
    assert seen[-1] == 0


def test_what_could_not_be_read_for_a_moment_is_read_by_the_next_look(place: Path) -> None:
    of, needs = of_place(place)
    site = place / "env/lib/python3.11/site-packages"
    for path in (site, place / "weights.bin"):
        os.utime(path, ns=(0, path.stat().st_mtime_ns + 10**9))
    comparer = DependencyChecker()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        said = comparer.compare(needs, str(of.directory)).changes
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert len(said) == 2
    assert all("(Too many open files)" in one for one in said)
    assert comparer.compare(needs, str(of.directory)).changes == ()


def test_a_library_of_several_names_is_read_once(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read = Reader.digest
    asked: list[str] = []

    def counted(reader: Reader, path: str) -> str:
        asked.append(path)
        return read(reader, path)

    monkeypatch.setattr(Reader, "digest", counted)
    _, needs = of_place(place)
    names = [str(place / "env/lib" / name) for name in ("libfoo.so.1", "libfoo.so.1.2")]
    known = {one.path: one.digest for one in needs if one.path in names}

    assert sorted(known) == names
    assert len({*known.values()} - {""}) == 1
    assert len([path for path in asked if path in names]) == 1


def test_what_changes_while_its_proof_is_written_down_is_noticed(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = place / "app.py"
    read = Reader.digest

    def late(reader: Reader, path: str) -> str:
        if path == str(script):
            # An upgrade goes on while gigabytes are read; as many bytes as before.
            script.write_bytes(bytes(reversed(script.read_bytes())))
        return read(reader, path)

    monkeypatch.setattr(Reader, "digest", late)
    of, needs = of_place(place)
    monkeypatch.undo()

    assert changes(needs, of.directory) == ("app.py was modified",)


def test_another_name_that_comes_while_it_is_read_is_no_change(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = place / "app.py"
    read = Reader.digest

    def late(reader: Reader, path: str) -> str:
        found = read(reader, path)
        if path == str(script):
            script.chmod(script.stat().st_mode ^ 0o100)
        return found

    monkeypatch.setattr(Reader, "digest", late)
    of, needs = of_place(place)
    monkeypatch.undo()

    assert changes(needs, of.directory) == ()
    # It was read.
    edited_in_secret(place)
    assert changes(needs, of.directory) == ("app.py was modified",)


def test_what_a_run_writes_itself_is_no_evidence(place: Path) -> None:
    of, _ = of_place(place)
    before = proofs.named(of, {})
    (place / "weights.bin").write_bytes(b"written")
    (place / "model" / "log").write_text("line")
    (place / "generated.so").write_bytes(b"code")
    needs = proofs.needed(of, before, [str(place / "generated.so")], (), (), ())
    paths = {one.path for one in needs}
    assert not {str(place / name) for name in ("weights.bin", "model", "generated.so")} & paths
    (place / "weights.bin").write_bytes(b"again")
    (place / "model" / "log2").touch()
    assert changes(needs, place) == ()


def test_what_an_earlier_pass_wrote_is_no_evidence_either(place: Path) -> None:
    of, _ = of_place(place)
    (place / "outputs").mkdir()
    (place / "kept").mkdir()
    of = workload(place, *of.command, "outputs", "kept", "--log=log")
    first = proofs.named(of, {})
    (place / "outputs" / "1").touch()
    (place / "log").touch()
    needs = proofs.needed(of, proofs.named(of, {}), (), (), (), [str(place / "kept")], earlier=first)
    assert not {str(place / name) for name in ("outputs", "outputs/1", "log", "kept")} & {one.path for one in needs}
    (place / "outputs" / "2").touch()
    assert changes(needs, place) == ()


def test_what_comes_from_the_future_is_evidence_and_a_clock_that_was_set_is_noticed(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    of, _ = of_place(place)
    library = place / "kernel.so"
    library.write_bytes(b"code")
    before = proofs.named(of, {})
    assert not proofs.clock_was_set(before)
    # Installed while the clock was ahead, and then that was put right.
    present, year = time.time_ns, 365 * 86400 * 10**9
    monkeypatch.setattr(time, "time_ns", lambda: present() - year)
    assert proofs.clock_was_set(before)
    needs = proven(of, library)
    assert str(library) in {one.path for one in needs}
    library.write_bytes(b"another code")
    assert changes(needs, place) == ("kernel.so was modified",)


@pytest.mark.parametrize("ahead", [-3600, 3600])
def test_a_library_that_is_replaced_while_it_runs_is_not_proven_whatever_a_server_s_clock_says(
    place: Path, ahead: int
) -> None:
    of, _ = of_place(place)
    library = place / "libfoo.so"
    library.write_bytes(b"code")
    before = proofs.named(of, {}, loaded=[str(library)])
    replaced(library, b"other code")
    # To a file system whose clock differs, the pass was at another time.
    before = dataclasses.replace(before, began=before.began - ahead * 10**9)
    with pytest.MonkeyPatch.context() as patch:
        present = time.time_ns
        patch.setattr(time, "time_ns", lambda: present() - ahead * 10**9)
        needs = proofs.needed(of, before, [str(library)], (), (), (), mapped_before=[str(library)])
    assert changes(needs, place) == ("libfoo.so was changed while the run that proved it went on",)


def test_code_that_changed_while_it_ran_is_not_proven_but_only_once(place: Path) -> None:
    of, _ = of_place(place)
    before = proofs.named(of, {})
    (place / "helper.py").write_text("A = 3\n")
    needs = proofs.needed(of, before, (), (), (), ())
    assert changes(needs, place) == ("helper.py was changed while the run that proved it went on",)
    # A program that writes its own module at each start would else be run for ever.
    before = proofs.named(of, {})
    (place / "helper.py").write_text("A = 4\n")
    again = proofs.needed(of, before, (), (), (), (), needs)
    assert changes(again, place) == ()


def test_a_library_that_is_replaced_while_it_runs_is_not_proven(place: Path) -> None:
    of, _ = of_place(place)
    library = place / "libfoo.so"
    library.write_bytes(b"code")
    last = proven(of, library)
    needs = last
    # The first pass had it mapped, or the last proof knows it: so it was there before the pass.
    for mapped, known in (([str(library)], ()), ([], last)):
        before = proofs.named(of, {})
        (place / "new").write_bytes(b"other code")
        (place / "new").rename(library)
        needs = proofs.needed(of, before, [str(library)], (), (), (), known, mapped_before=mapped)
        assert changes(needs, place) == ("libfoo.so was changed while the run that proved it went on",)
    # One that its program writes at each start is left out.
    before = proofs.named(of, {})
    library.write_bytes(b"third code")
    assert changes(proofs.needed(of, before, [str(library)], (), (), (), needs), place) == ()


@pytest.mark.parametrize("gone", [False, True])
def test_a_library_of_which_another_version_comes_while_it_runs_is_not_proven(place: Path, *, gone: bool) -> None:
    """As a package manager does: another file, the link, and away with the old one."""
    of, _ = of_place(place)
    library, link = place / "libfoo.so.1.1", place / "libfoo.so.1"
    library.write_bytes(b"code")
    link.symlink_to(library)
    before = proofs.named(of, {}, [str(library)])
    other = place / "libfoo.so.1.2"
    other.write_bytes(b"other code")
    link.unlink()
    link.symlink_to(other)
    if gone:
        library.unlink()
    needs = proofs.needed(of, before, [str(library)], (), (), ())
    names = ("libfoo.so.1", "libfoo.so.1.1") if gone else ("libfoo.so.1",)
    assert changes(needs, place) == tuple(f"{name} was changed while the run that proved it went on" for name in names)
    # The next proof is of the new one, and holds.
    before = proofs.named(of, {}, [str(other)])
    needs = proofs.needed(of, before, [str(other)], (), (), (), needs)
    assert changes(needs, place) == ()
    assert {str(link), str(other)} <= {one.path for one in needs}


@pytest.mark.parametrize("gone", [False, True])
def test_a_module_that_only_its_process_tells_and_that_is_edited_while_it_runs_is_not_proven(
    place: Path, *, gone: bool
) -> None:
    of, _ = of_place(place)
    module = place / "plugin.py"
    module.write_text("A = 1\n")
    before = proofs.named(of, {}, [str(module)])
    module.unlink()
    if not gone:
        module.write_text("A = 22\n")
    needs = proofs.needed(of, before, (), (), [(str(module), Role.MODULE)], ())
    assert changes(needs, place) == ("plugin.py was changed while the run that proved it went on",)
    # What each run writes anew is its own work.
    module.write_text("A = 3\n")
    before = proofs.named(of, {}, [str(module)])
    module.write_text("A = 44\n")
    assert changes(proofs.needed(of, before, (), (), [(str(module), Role.MODULE)], (), needs), place) == ()


def test_another_name_or_other_rights_are_no_change_while_it_runs(place: Path) -> None:
    library = place / "libfoo.so"
    library.write_bytes(b"code")
    of = workload(place, sys.executable, "app.py", "--weights=weights.bin", "model")
    # As a package manager does that keeps one copy of each file for all environments.
    meanwhile: tuple[Callable[[Path], object], ...] = (
        lambda path: path.with_name(f"too {path.name}").hardlink_to(path),
        lambda path: path.with_name(f"too {path.name}").unlink(),
        lambda path: path.chmod(0o640),
    )
    files = [library, place / "app.py", place / "helper.py", place / "weights.bin"]
    last: tuple[Dependency, ...] = ()
    for change in meanwhile:
        first = proofs.named(of, {})
        before = proofs.named(of, {}, [str(library)], last)
        for path in files:
            change(path)
        last = proofs.needed(of, before, [str(library)], (), (), (), last, (), first, [str(library)])
        assert {str(path) for path in files} <= {one.path for one in last}
        assert changes(last, place) == ()
        # Where one pass was enough, the last proof tells what each file was.
        before = proofs.named(of, {})
        for path in files:
            path.chmod(0o600)
        last = proofs.needed(of, before, [str(library)], (), (), (), last)
        assert {str(path) for path in files} <= {one.path for one in last}
        assert changes(last, place) == ()
    # What was written is not the same for having the times of before.
    before = proofs.named(of, {}, [str(library)], last)
    edited_in_secret(place)
    last = proofs.needed(of, before, [str(library)], (), (), (), last, mapped_before=[str(library)])
    assert changes(last, place) == ("app.py was changed while the run that proved it went on",)


def test_a_file_beside_the_target_of_a_link_is_the_one_that_the_program_reads(tmp_path: Path) -> None:
    release = tmp_path / "releases" / "42"
    release.mkdir(parents=True)
    (tmp_path / "current").symlink_to(release)
    weights = tmp_path / "releases" / "weights.bin"
    weights.write_bytes(b"weights")
    of = workload(tmp_path / "current", "/bin/true", "../weights.bin", f"--more={tmp_path}/current/../weights.bin")
    needs = proven(of)
    weights.write_bytes(b"other weights")
    assert [one.rpartition("/")[2] for one in changes(needs, of.directory)] == ["weights.bin was modified"]


@pytest.mark.parametrize(
    ("command", "directory", "told"),
    [
        ((sys.executable, "{place}/now/app.py"), "", "now/app.py leads to {place}/v2/app.py now"),
        (
            (sys.executable, "app.py"),
            "now",
            "app.py leads to {place}/v2/app.py now\n{place}/now leads to {place}/v2 now",
        ),
        (("sh", "now/run.sh"), "", "now/run.sh leads to {place}/v2/run.sh now"),
        (("./now/tool",), "", "now/tool leads to {place}/v2/tool now"),
        (("./tool",), "", "tool leads to {place}/v2/tool now"),
        (("true",), "", "now leads to {place}/v2 now"),
    ],
)
def test_another_release_to_which_a_link_leads_is_a_change_though_what_is_started_is_the_same_file(
    tmp_path: Path, command: tuple[str, ...], directory: str, told: str
) -> None:
    for release in ("v1", "v2"):
        place = tmp_path / release
        place.mkdir()
        for name in ("helper.py", "libops.so"):
            (place / name).write_text(release)
    for name, text in (("app.py", "import helper\n"), ("run.sh", f"{sys.executable} app.py\n"), ("tool", "ELF")):
        (tmp_path / "v1" / name).write_text(text)
        # As releases are made that share what they have in common.
        os.link(tmp_path / "v1" / name, tmp_path / "v2" / name)
    links = (tmp_path / "now", "v{}"), (tmp_path / "tool", "v{}/tool")
    for link, target in links:
        link.symlink_to(target.format(1))
    variables = {"LD_LIBRARY_PATH": f"{tmp_path}/now"} if command == ("true",) else {}
    words = [word.format(place=tmp_path) for word in command]
    of = workload(tmp_path / directory, *words, **variables)
    needs = proven(of, tmp_path / "v1/libops.so")
    # What comes and goes where a link leads is no other place.
    (tmp_path / "v1/fresh").touch()
    assert changes(needs, of.directory) == ()
    before, again = proofs.named(of, {}), proofs.named(of, {}, ())
    for link, target in links:
        link.unlink()
        link.symlink_to(target.format(2))
    assert changes(needs, of.directory) == tuple(told.format(place=tmp_path).split("\n"))
    # That it was read before, for this proof or the one before it, makes it no other release's.
    for then, last in ((before, ()), (again, ()), (before, needs)):
        meanwhile = proofs.needed(of, then, [], (), (), (), last)
        assert any("changed while the run" in one for one in changes(meanwhile, of.directory))


def test_a_script_in_whose_place_a_link_to_another_release_came_is_changed_though_it_says_the_same(
    tmp_path: Path,
) -> None:
    for release, text in ((tmp_path, "v1"), (tmp_path / "v2", "v2")):
        release.mkdir(exist_ok=True)
        (release / "app.py").write_text("import helper\n")
        (release / "helper.py").write_text(text)
    of = workload(tmp_path, sys.executable, "app.py")
    needs = proven(of)
    (tmp_path / "app.py").unlink()
    (tmp_path / "app.py").symlink_to("v2/app.py")
    assert changes(needs, of.directory) == (f"app.py leads to {tmp_path}/v2/app.py now",)


def test_a_library_counts_by_the_link_in_a_directory_of_many_packages(place: Path) -> None:
    view = place / "view"
    for release in ("a", "b"):
        (place / release).mkdir()
        (place / release / "libops.so.2.1").write_text(release)
    view.mkdir()
    link = view / "libops.so.2"
    link.symlink_to(place / "a/libops.so.2.1")
    needs = proven(workload(place, "true", LD_LIBRARY_PATH=f"/nowhere:{view}"), place / "a/libops.so.2.1")
    assert changes(needs, place) == ()
    link.unlink()
    link.symlink_to(place / "b/libops.so.2.1")
    assert changes(needs, place) == ("view/libops.so.2 was replaced",)


@pytest.mark.parametrize(
    ("origin", "program"),
    [
        ("$ORIGIN", "app"),
        ("${ORIGIN}", "app"),
        ("{place}", "app"),
        ("{place}", "lib/python3.11/site-packages/app.so"),
        ("$ORIGIN/../../..", "venv/lib/site-packages/app.so"),
    ],
)
@pytest.mark.skipif(COMPILER is None, reason="no compiler")
def test_a_library_counts_by_the_link_by_which_a_program_finds_it_for_itself(
    place: Path, origin: str, program: str
) -> None:
    for release in ("v1", "v2"):
        (place / release).mkdir()
        for name in ("foo", "bar"):
            # As one library that was built anew, and one that was not.
            text = release if name == "foo" else ""
            source = ("-x", "c", "-", "-DNAME=" + name + text)
            made = place / release / f"lib{name}.so.1"
            run(
                [str(COMPILER), "-shared", "-fPIC", "-o", made, *source],
                input=b"int NAME(void) { return 1; }",
                check=True,
            )
    (place / "now").symlink_to("v1")
    path = f"-Wl,-rpath,{origin.replace('{place}', str(place))}/now"
    (place / program).parent.mkdir(parents=True, exist_ok=True)
    run([str(COMPILER), "-x", "c", "-", "-o", place / program, path], input=b"int main(void) { return 0; }", check=True)
    libraries = [place / program, *(place / "v1" / f"lib{name}.so.1" for name in ("foo", "bar"))]
    needs = proven(workload(place, f"./{program}"), *libraries)
    assert changes(needs, place) == ()
    (place / "now").unlink()
    (place / "now").symlink_to("v2")
    assert changes(needs, place) == ("now/libfoo.so.1 was replaced",)


def test_a_library_counts_by_the_link_that_chooses_it_among_several(place: Path) -> None:
    """As ``update-alternatives`` does, in the directory of the other libraries."""
    (place / "alternatives").mkdir()
    for name in ("blas/libblas.so.3", "mkl/libmkl_rt.so", "libc.so"):
        (place / name).parent.mkdir(exist_ok=True)
        (place / name).write_text(name)
    chosen = place / "alternatives" / "libblas"
    chosen.symlink_to(place / "mkl/libmkl_rt.so")
    (place / "libblas.so.3").symlink_to(chosen)
    needs = proven(workload(place, "true"), place / "libc.so", place / "mkl/libmkl_rt.so")
    chosen.unlink()
    chosen.symlink_to(place / "blas/libblas.so.3")
    assert changes(needs, place) == ("libblas.so.3 was replaced",)


@pytest.mark.parametrize(
    "command",
    [
        ("env", "LD_LIBRARY_PATH=/nowhere:{place}/now", "true"),
        ("sh", "-c", "LD_LIBRARY_PATH=now:$LD_LIBRARY_PATH true"),
        ("sh", "-c", "LD_PRELOAD={place}/now/libhook.so:libm.so.6 true"),
        ("sh", "run.sh"),
    ],
)
def test_where_a_command_has_libraries_looked_for_counts(place: Path, command: tuple[str, ...]) -> None:
    for release in ("v1", "v2"):
        (place / release).mkdir()
        (place / release / "libhook.so").write_text(release)
    (place / "now").symlink_to("v1")
    lines = ("LD_LIBRARY_PATH=no\0where", 'export LD_LIBRARY_PATH="$HERE/now:$LD_LIBRARY_PATH"', "exec true")
    (place / "run.sh").write_text("\n".join(lines))
    words = (one.format(place=place) for one in command)
    needs = proven(workload(place, *words), place / "v1/libhook.so")
    (place / "now").unlink()
    (place / "now").symlink_to("v2")
    assert changes(needs, place) == (f"now leads to {place}/v2 now",)


def test_where_a_preloaded_library_is_found_counts(place: Path) -> None:
    for release in ("v1", "v2"):
        (place / release).mkdir()
        (place / release / "libhook.so").write_text(release)
    (place / "now").symlink_to("v1")
    needs = proven(workload(place, "true", LD_PRELOAD=f"libm.so.6 {place}/now/libhook.so"), place / "v1/libhook.so")
    (place / "now").unlink()
    (place / "now").symlink_to("v2")
    assert changes(needs, place) == (f"now leads to {place}/v2 now",)


@pytest.mark.parametrize(
    "way", ["PATH={0}:$PATH; exec tool 0.4", "exec {0}/tool 0.4", "LD_LIBRARY_PATH={0} exec -a 0 v1/tool 0.4"]
)
def test_where_programs_and_libraries_are_come_to_by_what_a_script_computes_counts(place: Path, way: str) -> None:
    for release in ("v1", "v2"):
        (place / release).mkdir()
        shutil.copyfile(str(shutil.which("sleep")), place / release / "tool")
        (place / release / "tool").chmod(0o755)
    (place / "now").symlink_to("v1")
    script = "for one in $PWD/n?w; do " + way.format("$one") + "; done"
    of = workload(place, "bash", "-c", script)
    before = proofs.named(of, {})
    done = asyncio.run(ProcessStarter(os.environ, INSTANCE).execute(of, {}, Trace(), polite=True))
    assert done.outcome is None, done.output
    needs = proofs.needed(of, before, done.mapped, (), (), (), places=done.places)
    assert changes(needs, place) == ()
    again = proofs.named(of, {}, done.mapped, (), done.places)
    (place / "now").unlink()
    (place / "now").symlink_to("v2")
    assert f"now leads to {place}/v2 now" in changes(needs, place)
    meanwhile = proofs.needed(of, again, done.mapped, (), (), (), places=done.places)
    assert any(one.startswith("now was changed while the run") for one in changes(meanwhile, place))


@pytest.mark.parametrize("first", [True, False])
def test_a_link_that_each_start_makes_under_another_name_is_no_evidence(place: Path, *, first: bool) -> None:
    """So does fnm for each shell, and what it made is gone after a boot."""
    (place / "v1").mkdir()
    shutil.copyfile(str(shutil.which("sleep")), place / "v1/tool")
    (place / "v1/tool").chmod(0o755)
    (place / "stays").symlink_to("v1")
    of = workload(place, "bash", "-c", 'ln -s v1 shell-$$; PATH="$PWD/shell-$$:$PWD/stays:$PATH"; exec tool 0.4')
    starter = ProcessStarter(os.environ, INSTANCE)

    def run() -> RunResult:
        done = asyncio.run(starter.execute(of, {}, Trace(), polite=True))
        assert done.outcome is None, done.output
        return done

    began = proofs.named(of, {})
    one = run()
    told = {str(path / "tool"): Role.MODULE for path in place.glob("shell-*")}
    if first:
        before = proofs.named(of, {}, [*one.mapped, *told], (), one.places)
        two = run()
        needs = proofs.needed(of, before, two.mapped, (), (), (), earlier=began, places=two.places)
    else:
        last = [one for one in proofs.needed(of, began, one.mapped, (), (), ()) if one.role is not Role.LINK]
        needs = proofs.needed(of, began, one.mapped, (), told.items(), (), last, places=one.places)
    assert str(place / "stays") in {one.path for one in needs}
    for path in place.glob("shell-*"):
        path.unlink()
    assert changes(needs, place) == ()


def test_mapped_weights_count_and_caches_do_not(place: Path) -> None:
    of, _ = of_place(place)
    big, small, cached = place / "big", place / "small", place / "cache" / "kernel.so"
    cached.parent.mkdir()
    for path, size in ((big, 2 << 20), (small, 10), (cached, 10)):
        path.write_bytes(bytes(size))
    time.sleep(0.02)
    needs = proofs.needed(of, proofs.named(of, {}), [str(cached)], [str(big), str(small)], (), [str(cached.parent)])
    paths = {one.path for one in needs}
    assert str(big) in paths
    assert not {str(small), str(cached)} & paths


# -- files that do not answer -----------------------------------------------------------------------------------------


def test_files_that_do_not_answer_hold_up_nobody_and_are_not_called_unchanged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("xpucached.service.proofs._PATIENCE", 0.3)
    monkeypatch.setattr("xpucached.service.proofs._FRESH", 0.0)
    monkeypatch.setattr("xpucached.service.proofs._SHARE", 0.0)
    answer, stat = threading.Event(), os.stat
    with contextlib.closing(catalogs.fresh(tmp_path / "catalog.sqlite")) as catalog:
        for name in ("away", "here", "old"):
            (tmp_path / name).touch()
            of = workload(tmp_path, "/bin/true", name)
            model = Model(ModelName(name), of)
            catalog.write(add_model, model)
            run = catalog.write(begin_run, model, WarmReason.NEVER, "", NOW)
            needs = None if name == "old" else proven(of)
            catalog.write(finish_run, run.id, Outcome.WARMED, (), Attribution(), (), "", "", NOW, needs=needs)
        context = Context(loading.load(None, user=True, environ=os.environ), catalog, {}, clock)
        proofs = ProofKeeper(context, StoreFinder(context))

        def changed() -> dict[str, tuple[str, ...] | None]:
            return {one.model: one.changes if one.noted else None for one in proofs.coverage(context.present)}

        def hang(path: str) -> os.stat_result:
            # As a server does that is away.
            if path.endswith("away"):
                answer.wait()
            return stat(path)

        monkeypatch.setattr("xpucached.host.proofs.os.stat", hang)
        silent = ("its files do not answer: whether they changed is unknown",)
        try:
            for _ in range(3):
                assert changed() == {"away": silent, "here": (), "old": None}
        finally:
            answer.set()
        end = time.monotonic() + daemons.PATIENCE
        while changed()["away"] == silent and time.monotonic() < end:
            time.sleep(0.05)
        assert changed() == {"away": (), "here": (), "old": None}


def test_who_answers_while_others_answers_are_taken_is_not_called_unchanged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("xpucached.service.proofs._PATIENCE", 0.3)
    monkeypatch.setattr("xpucached.service.proofs._FRESH", 0.0)
    monkeypatch.setattr("xpucached.service.proofs._SHARE", 0.0)
    answer, stat, take = threading.Event(), os.stat, ProofKeeper._take
    with contextlib.closing(catalogs.fresh(tmp_path / "catalog.sqlite")) as catalog:
        for name in ("here", "slow"):
            (tmp_path / name).touch()
            of = workload(tmp_path, "/bin/true", name)
            model = Model(ModelName(name), of)
            catalog.write(add_model, model)
            run = catalog.write(begin_run, model, WarmReason.NEVER, "", NOW)
            done = (Outcome.WARMED, (), Attribution(), (), "", "", NOW)
            catalog.write(finish_run, run.id, *done, needs=proven(of))
        (tmp_path / "slow").write_text("changed")
        context = Context(loading.load(None, user=True, environ=os.environ), catalog, {}, clock)
        proofs = ProofKeeper(context, StoreFinder(context))

        def hang(path: str) -> os.stat_result:
            if path.endswith("slow"):
                answer.wait()
            return stat(path)

        def taken(keeper: ProofKeeper, run: int, compared: object) -> None:
            take(keeper, run, compared)  # type: ignore[arg-type] # private there
            answer.set()
            for thread in threading.enumerate():
                if thread.name == "proofs":
                    thread.join(daemons.PATIENCE)

        try:
            with monkeypatch.context() as host:
                host.setattr("xpucached.host.proofs.os.stat", hang)
                host.setattr(ProofKeeper, "_take", taken)
                (changes,) = (one.changes for one in proofs.coverage(context.present) if one.model == "slow")
        finally:
            answer.set()
        assert changes


@pytest.mark.parametrize(
    ("old", "new"), [('"data"', '"a newer word"'), ('", ', '"l '), ("/", "\udcff")], ids=["word", "document", "text"]
)
def test_what_cannot_be_read_of_one_model_counts_as_its_change_and_costs_no_other(
    tmp_path: Path, old: str, new: str
) -> None:
    with contextlib.closing(catalogs.fresh(tmp_path / "catalog.sqlite")) as catalog:
        numbers: dict[str, int] = {}
        for name in ("first", "second", "third"):
            (tmp_path / name).touch()
            of = workload(tmp_path, "/bin/true", name)
            model = Model(ModelName(name), of)
            catalog.write(add_model, model)
            numbers[name] = catalog.write(begin_run, model, WarmReason.NEVER, "", NOW).id
            done = (Outcome.WARMED, (), Attribution(), (), "", "", NOW)
            needs = [*proven(of), Dependency(Role.DATA, "/usr", 0, 0, 0, 0, unsettled=False)]
            catalog.write(finish_run, numbers[name], *done, needs=needs if name == "first" else proven(of))
        (tmp_path / "third").write_text("changed")
        with contextlib.closing(sqlite3.connect(catalog.path)) as raw, raw:
            asked = "SELECT document FROM dependencies WHERE run_id = ?"
            (document,) = raw.execute(asked, (numbers["first"],)).fetchone()
            assert old in document
            put = os.fsencode(document.replace(old, new))
            again = "UPDATE dependencies SET document = CAST(? AS TEXT) WHERE run_id = ?"
            raw.execute(again, (put, numbers["first"]))
        context = Context(loading.load(None, user=True, environ=os.environ), catalog, {}, clock)
        proofs = ProofKeeper(context, StoreFinder(context))
        for _ in range(2):
            found = {one.model: (one.noted, len(one.changes)) for one in proofs.coverage(context.present)}
            assert found == {"first": (True, 1), "second": (True, 0), "third": (True, 1)}
            proofs.look_again()
        assert not catalog.corrupt


def test_a_run_that_ends_while_models_are_looked_at_is_told_as_no_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with contextlib.closing(catalogs.fresh(tmp_path / "catalog.sqlite")) as catalog:

        def prove(name: str) -> None:
            of = workload(tmp_path, "/bin/true", name)
            model = Model(ModelName(name), of)
            if not (tmp_path / name).exists():
                (tmp_path / name).touch()
                catalog.write(add_model, model)
            run = catalog.write(begin_run, model, WarmReason.NEVER, "", NOW)
            done = (Outcome.WARMED, (), Attribution(), (), "", "", NOW)
            catalog.write(finish_run, run.id, *done, needs=proven(of))

        for name in ("first", "second"):
            prove(name)
        context = Context(loading.load(None, user=True, environ=os.environ), catalog, {}, clock)
        proofs = ProofKeeper(context, StoreFinder(context))
        compare = proofs._comparer.compare

        def compared(needs: tuple[Dependency, ...], directory: str) -> object:
            monkeypatch.undo()
            prove("second")
            return compare(needs, directory)

        monkeypatch.setattr(proofs._comparer, "compare", compared)
        assert [one.changes for one in proofs.coverage(context.present)] == [(), ()]


def test_what_changes_behind_a_look_that_goes_on_is_told_to_who_has_it_compared_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who asked for that was forgotten when the other one's look ended: what it had found held on."""
    monkeypatch.setattr("xpucached.service.proofs._FRESH", 3600.0)
    with contextlib.closing(catalogs.fresh(tmp_path / "catalog.sqlite")) as catalog:
        for name in ("first", "second"):
            (tmp_path / name).touch()
            model = Model(ModelName(name), workload(tmp_path, "/bin/true", name))
            catalog.write(add_model, model)
            run = catalog.write(begin_run, model, WarmReason.NEVER, "", NOW)
            needs = proven(model.workload)
            catalog.write(finish_run, run.id, Outcome.WARMED, (), Attribution(), (), "", "", NOW, needs=needs)
        context = Context(loading.load(None, user=True, environ=os.environ), catalog, {}, clock)
        proofs = ProofKeeper(context, StoreFinder(context))
        compare = proofs._comparer.compare

        def compared(needs: tuple[Dependency, ...], directory: str) -> object:
            found = compare(needs, directory)
            # The first one's files were looked at, and the second one's are to be.
            monkeypatch.setattr(proofs._comparer, "compare", compare)
            (tmp_path / "first").write_text("edited")
            proofs.look_again()
            return found

        monkeypatch.setattr(proofs._comparer, "compare", compared)
        assert [len(one.changes) for one in proofs.coverage(context.present)] == [0, 0]
        for _ in range(2):
            assert [len(one.changes) for one in proofs.coverage(context.present)] == [1, 0]


def test_where_no_thread_can_be_had_files_are_not_called_unchanged_and_nothing_is_noted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("xpucached.service.proofs._PATIENCE", 0.1)
    monkeypatch.setattr("xpucached.service.proofs._FRESH", 0.0)
    monkeypatch.setattr("xpucached.service.proofs._SHARE", 0.0)
    with contextlib.closing(catalogs.fresh(tmp_path / "catalog.sqlite")) as catalog:
        (tmp_path / "here").touch()
        model = Model(ModelName("net"), workload(tmp_path, "/bin/true", "here"))
        catalog.write(add_model, model)
        run = catalog.write(begin_run, model, WarmReason.NEVER, "", NOW)
        needs = proven(model.workload)
        catalog.write(finish_run, run.id, Outcome.WARMED, (), Attribution(), (), "", "", NOW, needs=needs)
        context = Context(loading.load(None, user=True, environ=os.environ), catalog, {}, clock)
        proofs = ProofKeeper(context, StoreFinder(context))
        before = proofs.named(model.name, model.workload)
        assert before is not None

        def start(_thread: threading.Thread) -> None:
            raise RuntimeError("can't start new thread")

        with monkeypatch.context() as host:
            host.setattr(threading.Thread, "start", start)
            (one,) = proofs.coverage(context.present)
            assert one.changes == ("the host has no room for a thread to ask it: whether its files changed is unknown",)
            # What is not known is not noted as nothing.
            assert proofs.named(model.name, model.workload) is None
            done = SimpleNamespace(mapped=(), mapped_data=(), interpreters=(), modules=(), bounds=(), places=())
            assert proofs.needed(model, [before], [done]) is None  # type: ignore[list-item] # all that is asked of it
        (one,) = proofs.coverage(context.present)
        assert one.changes == ()


def test_a_survey_that_ends_between_looking_and_deciding_makes_no_proof_count_unseen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = (sycl_target("OpenCL", "GPU", "3.0", driver) for driver in ("25.1", "25.2"))
    hosts = [Host(NOW, "", "", one.toolchain, environments=(one,)) for one in (old, new)]
    with contextlib.closing(catalogs.fresh(tmp_path / "catalog.sqlite")) as catalog:
        (tmp_path / "data").touch()
        model = Model(ModelName("net"), workload(tmp_path, "/bin/true", "data"))
        catalog.write(add_model, model)
        for host in hosts:
            run = catalog.write(begin_run, model, WarmReason.NEVER, host.signature, NOW)
            needs = proven(model.workload)
            catalog.write(finish_run, run.id, Outcome.WARMED, (), Attribution(), (), "", "", NOW, needs=needs)
            (tmp_path / "data").write_text(host.stamp)
        context = Context(loading.load(None, user=True, environ=os.environ), catalog, {}, clock)
        prewarmer = Service(context, ProcessStarter({}, INSTANCE)).prewarmer
        there = hosts[1]
        monkeypatch.setattr(Context, "present", property(lambda _: there))
        coverage = ProofKeeper.coverage

        def looked(keeper: ProofKeeper, *given: Host) -> tuple[Coverage, ...]:
            nonlocal there
            found = coverage(keeper, *given)
            # The earlier driver comes back, and with it a proof that was not looked at.
            there = hosts[0]
            return found

        monkeypatch.setattr(ProofKeeper, "coverage", looked)
        assert [one.warmth for one in asyncio.run(prewarmer.statuses())] == [Warmth.CHANGED]
        there = hosts[1]
        plan = asyncio.run(prewarmer.plan())
        assert [one.reason for one in plan.warm] == [WarmReason.PROGRAM]


def test_what_many_models_need_stays_within_bounds_and_is_compared_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("xpucached.service.proofs._FRESH", 0.0)
    monkeypatch.setattr("xpucached.service.proofs._SHARE", 0.0)
    monkeypatch.setattr("xpucached.service.proofs._KEPT", 5)
    with contextlib.closing(catalogs.fresh(tmp_path / "catalog.sqlite")) as catalog:
        for number in range(4):
            place = tmp_path / str(number)
            place.mkdir()
            (place / "data").touch()
            of = workload(place, "/bin/true", "data")
            catalog.write(add_model, Model(ModelName(f"net{number}"), of))
            run = catalog.write(begin_run, Model(ModelName(f"net{number}"), of), WarmReason.NEVER, "", NOW)
            needs = proven(of)
            assert 1 < len(needs) < 5
            catalog.write(finish_run, run.id, Outcome.WARMED, (), Attribution(), (), "", "", NOW, needs=needs)
        context = Context(loading.load(None, user=True, environ=os.environ), catalog, {}, clock)
        proofs = ProofKeeper(context, StoreFinder(context))
        for number in range(4):
            assert [len(one.changes) for one in proofs.coverage(context.present)] == [1] * number + [0] * (4 - number)
            assert 0 < sum(map(len, proofs._needs.values())) <= 5
            (tmp_path / str(number) / "data").write_text("changed")


@pytest.mark.parametrize("warmth", [Warmth.CHANGED, Warmth.WARMING])
def test_who_may_only_read_learns_no_paths(tmp_path: Path, warmth: Warmth) -> None:
    of = Model(ModelName("net"), workload(tmp_path, "/bin/true"))
    said = ("/secret/token was modified",)
    why = f"not proven as it is now: {said[0]}"
    status = ModelStatus.of(of, warmth, why, WarmReason.PROGRAM, changes=said)
    findings = tuple(Explanation(cause, why) for cause in (Cause.PROGRAM, Cause.WARMING))
    waits = Explanation(Cause.WAITING, f"since a minute: the processor is busy{THEN}{why}; to warm it all the same:")
    denied = ModelStatus.of(of, Warmth.COLD, why, WarmReason.RETRY)
    of_page = OverviewModel(of.name, Warmth.WARMING, why, 0, 0, None)
    assert "secret" not in str(redact((waits, denied, of_page)))
    assert "the processor is busy" in str(redact(waits))
    event = Event(1, NOW, "run-started", "net", {"model": "net", "reason": WarmReason.PROGRAM, "detail": why})
    assert "secret" not in str(redact((status, Diagnosis(of.name, warmth, findings), event)))


# -- through the daemon ----------------------------------------------------------------------------------------------


APPLICATION = """
import ctypes, os, pathlib, sys, time
import helper
ctypes.CDLL(str(pathlib.Path("libown.so").resolve()))
# Meanwhile somebody gives it another name for a moment.
os.link("libown.so", "again")
os.unlink("again")
cache = pathlib.Path("cache")
cache.mkdir(exist_ok=True)
(cache / f"kernel-{helper.KERNEL}").touch()
with open(sys.argv[1], "a") as log:
    log.write("a line at every run")
time.sleep(0.4)
"""


@pytest.fixture
def application(tmp_path: Path) -> Path:
    """Return a program with a module, a library and a log."""
    (tmp_path / "app.py").write_text(APPLICATION)
    (tmp_path / "helper.py").write_text("KERNEL = 1\n")
    (tmp_path / "log").touch()
    words = Path("/proc/self/maps").read_text(encoding="utf-8").split()
    shutil.copyfile(next(word for word in words if Path(word).name.startswith("libm.so")), tmp_path / "libown.so")
    return tmp_path


@pytest.fixture
def keeper(home: Path, short_dir: Path) -> Iterator[Daemon]:
    """Return a daemon that warms nothing by itself."""
    with daemons.daemon(home, short_dir) as one:
        one.configure("[schedule]\nsettle = '0.2s'\nprewarm = false\n")
        yield one


def register(one: Daemon, application: Path, cache: str = "cache") -> None:
    words = (sys.executable, "-W", "ignore", "app.py", "log")
    one.ctl(
        *("model", "add", "net", "--directory", str(application), "--device", "cpu"),
        *("--cache", str(application / cache), "--", *words),
    )


def stands(one: Daemon) -> tuple[object, object]:
    """Return how the model stands, and the exit status of the check."""
    return one.rows("model", "list")[0]["warmth"], one.ctl("status", "--check", check=None).returncode


# As people write them: where each goes, and which modules it finds there, the shell alone knows.
COMPUTED: Final = {
    "its-own": 'cd "$(dirname "$0")/sub"; exec python3 -W ignore app.py log',
    "kept": 'HERE=$(cd "$(dirname "$0")" && pwd); cd "$HERE"; cd sub && python3 -W ignore app.py log',
    "module": 'cd "$(dirname "$0")"/sub; python3 -W ignore -m app log',
    "other-name": 'TOP=${0%/*}; LIB="$TOP/lib"; export PYTHONPATH="$LIB:$PYTHONPATH"; python3 "$TOP/far.py"',
    "added": 'export PYTHONPATH+="${0%/*}/lib"; for one in "${0%/*}"/f*.py; do python3 "$one"; done',
    "home": "export HOME=${0%/*}; cd ~/sub && python3 -W ignore app.py log",
    "by-a-variable": """
        export PYTHONPATH+=${0%/*}/lib:${0%/*} LOAD=far; python3 -c 'import os; __import__(os.environ["LOAD"])'
    """,
}


@pytest.mark.timeout(300)
def test_wherever_a_shell_goes_what_runs_there_counts(keeper: Daemon, application: Path, tmp_path: Path) -> None:
    top, elsewhere = tmp_path / "top", tmp_path / "elsewhere"
    elsewhere.mkdir()
    (top / "lib").mkdir(parents=True)
    (top / "sub").mkdir()
    for name in ("app.py", "helper.py", "libown.so", "log"):
        shutil.move(application / name, top / "sub" / name)
    (top / "lib/far_helper.py").write_text("A = 1\n")
    (top / "far.py").write_text("import far_helper, pathlib, time; pathlib.Path('cache/k').touch(); time.sleep(0.4)\n")
    (elsewhere / "cache").mkdir()
    keeper.start()
    for name, text in COMPUTED.items():
        (top / f"{name}.sh").write_text(f"{text}\n")
        keeper.ctl(
            *("model", "add", name, "--directory", str(elsewhere), "--device", "cpu", "--cache"),
            str((elsewhere if "PYTHONPATH" in text else top / "sub") / "cache"),
            *("--", "bash", str(top / f"{name}.sh")),
        )
    keeper.ctl("prewarm", *COMPUTED)
    assert {str(one["name"]): one["warmth"] for one in keeper.rows("model", "list")} == dict.fromkeys(COMPUTED, "warm")
    (top / "sub/helper.py").write_text("KERNEL = 2\n")
    (top / "lib/far_helper.py").write_text("A = 2\n")
    time.sleep(1.1)
    keeper.until(lambda: "warm" not in {one["warmth"] for one in keeper.rows("model", "list")})
    assert {str(one["name"]): one["changes"] for one in keeper.rows("model", "list")} == {
        name: [f"{top}/{'lib/far_helper.py' if 'PYTHONPATH' in text else 'sub/helper.py'} was modified"]
        for name, text in COMPUTED.items()
    }


@pytest.mark.timeout(300)
def test_what_processes_were_seen_to_be_given_is_neither_kept_nor_told(
    keeper: Daemon, application: Path, tmp_path: Path
) -> None:
    keeper.start()
    # What a shell computes stands in no command that is registered.
    script = "K=$(echo yek-terces | rev); PYTHONPATH=/nowhere/$K python3 -W ignore app.py log --key=$K"
    keeper.ctl(
        *("model", "add", "net", "--directory", str(application), "--device", "cpu"),
        *("--cache", str(application / "cache"), "--", "bash", "-c", script),
    )
    keeper.ctl("prewarm", "net")
    (application / "helper.py").write_text("KERNEL = 2\n")
    keeper.until(lambda: keeper.ask("model", "show", "net")["changes"] == ["helper.py was modified"])
    answers = [
        keeper.ctl(*words, check=None).stdout for words in (("model", "show", "net"), ("why", "net"), ("events",))
    ]
    keeper.end()
    places = (tmp_path, keeper.run)
    kept = [path.read_bytes() for place in places for path in place.rglob("*") if path.is_file()]
    assert any(b"yek-terces" in one for one in kept)
    assert not any("secret-key" in one for one in answers)
    assert not any(b"secret-key" in one for one in kept)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("lives", ["", "; true"])
def test_what_a_script_reads_as_its_own_where_it_goes_counts(keeper: Daemon, application: Path, lives: str) -> None:
    """Whether its shell becomes the Python, and is not seen there, or waits, and its words name nothing there."""
    (application / "app").mkdir()
    (application / "app/env.sh").write_text("export SIZE=1\n")
    (application / "app/work.py").write_text("import time; open('../cache/k', 'w').close(); time.sleep(0.4)\n")
    (application / "cache").mkdir()
    start = "python3 work.py" if lives else "exec python3 work.py"
    (application / "run.sh").write_text(f'cd "$(dirname "$0")/app"; source env.sh; {start}{lives}\n')
    keeper.start()
    words = ("--device", "cpu", "--cache", str(application / "cache"), "--", "bash", "run.sh")
    keeper.ctl("model", "add", "net", "--directory", str(application), *words)
    keeper.ctl("prewarm", "net")
    assert stands(keeper) == ("warm", 0)
    (application / "app/env.sh").write_text("export SIZE=2\n")
    keeper.until(lambda: stands(keeper) == ("changed", 1))
    assert keeper.ask("model", "show", "net")["changes"] == ["app/env.sh was modified"]


@pytest.mark.timeout(300)
def test_a_model_whose_program_changed_is_not_warm_and_says_what_changed(keeper: Daemon, application: Path) -> None:
    keeper.start()
    register(keeper, application)
    keeper.ctl("prewarm", "net")
    assert stands(keeper) == ("warm", 0)
    # What it writes at each run changes nothing.
    (application / "log").write_text("something else")
    os.utime(application / "app.py")
    time.sleep(1.1)
    assert stands(keeper) == ("warm", 0)
    (application / "helper.py").write_text("KERNEL = 2\n")
    replaced(application / "libown.so", (application / "libown.so").read_bytes() + b"0")
    keeper.until(lambda: stands(keeper) == ("changed", 1))
    told = "helper.py was modified", "libown.so was replaced"
    for words in (("status",), ("why", "net"), ("model", "show", "net"), ("model", "list")):
        said = " ".join(keeper.ctl(*words, check=None).stdout.split())
        assert all(one in said for one in told), said
    assert tuple(keeper.ask("model", "show", "net")["changes"]) == told  # type: ignore[arg-type]
    assert keeper.ask("model", "show", "net")["reason"] == "program-changed"
    # It survives a restart, and only another proof ends it.
    keeper.end()
    keeper.start()
    assert stands(keeper) == ("changed", 1)
    keeper.ctl("prewarm", "--stale")
    keeper.until(lambda: stands(keeper) == ("warm", 0))
    assert keeper.rows("runs", "net")[0]["reason"] == "program-changed"
    assert tuple(keeper.rows("runs", "net")[0]["changes"]) == told  # type: ignore[arg-type]
    assert keeper.rows("runs", "net")[0]["kernel"] == os.uname().release


@pytest.mark.timeout(300)
@pytest.mark.parametrize("way", ["store", "cache"])
def test_what_lies_in_a_directory_that_is_a_store_as_well_counts(keeper: Daemon, application: Path, way: str) -> None:
    """As where somebody says ``SYCL_CACHE_DIR=.``, or his home; or ``--cache .``."""
    paths = [f"sycl:{application}"] if way == "store" else []
    keeper.configure(f"[stores]\npaths = {paths}\n[schedule]\nsettle = '0.2s'\nprewarm = false\n")
    keeper.start()
    register(keeper, application, "" if way == "cache" else "cache")
    keeper.ctl("scan")
    keeper.ctl("prewarm", "net")
    assert stands(keeper)[0] == "warm"
    replaced(application / "libown.so", (application / "libown.so").read_bytes() + b"0")
    keeper.until(lambda: stands(keeper)[0] == "changed")


@pytest.mark.timeout(300)
def test_a_changed_program_is_proven_again_by_itself(keeper: Daemon, application: Path) -> None:
    keeper.configure("[schedule]\nsettle = '0.2s'\nscan_interval = '1s'\n")
    keeper.start()
    register(keeper, application)
    keeper.until(lambda: stands(keeper)[0] == "warm")
    (application / "helper.py").write_text("KERNEL = 2\n")
    keeper.until(lambda: keeper.rows("runs", "net")[0]["reason"] == "program-changed" and stands(keeper)[0] == "warm")
    assert (application / "cache" / "kernel-2").exists()
    # And only once.
    count = len(keeper.rows("runs", "net"))
    time.sleep(3)
    assert len(keeper.rows("runs", "net")) == count


@pytest.mark.timeout(300)
def test_what_each_variant_writes_for_itself_is_no_evidence(keeper: Daemon, tmp_path: Path) -> None:
    """Of what another one wrote the first saw what was there before, and the model was never warm."""
    script = "mkdir -p cache; : >cache/kernel; date +%s%N >out/$1.json"
    (tmp_path / "out").mkdir()
    (tmp_path / "out/weights").touch()
    keeper.start()
    keeper.ctl(
        *("model", "add", "net", "--directory", str(tmp_path), "--device", "cpu", "--cache", str(tmp_path / "cache")),
        *("--precision", "float32", "--precision", "float16", "--", "/bin/sh", "-c", script, "out", "{precision}"),
    )
    for _ in range(3):
        keeper.ctl("prewarm", "--force", "net")
        assert stands(keeper) == ("warm", 0), keeper.ask("model", "show", "net")["changes"]
    # What none of them writes is.
    (tmp_path / "out/weights").write_text("others")
    keeper.until(lambda: keeper.ask("model", "show", "net")["changes"] == ["out/weights was modified"])


@pytest.mark.timeout(300)
def test_a_loader_tells_the_modules_that_it_loaded_itself(keeper: Daemon, tmp_path: Path) -> None:
    (tmp_path / "nets.py").write_text(
        "import importlib, pathlib, time\n"
        "def make():\n"
        "    time.sleep(0.4)\n"  # so that what runs it is seen to run
        "    part = importlib.import_module('hid' + 'den')\n"
        "    pathlib.Path('cache').mkdir(exist_ok=True)\n"
        "    return lambda: pathlib.Path('cache', str(part.A)).touch()\n"
    )
    (tmp_path / "hidden.py").write_text("A = 1\n")
    keeper.start()
    keeper.ctl(
        *("model", "add", "net", "--loader", "python", "--python", sys.executable, "--target", "nets:make"),
        *("--device", "cpu", "--directory", str(tmp_path), "--cache", str(tmp_path / "cache")),
    )
    keeper.ctl("prewarm", "net")
    assert stands(keeper) == ("warm", 0)
    (tmp_path / "hidden.py").write_text("A = 2\n")
    keeper.until(lambda: keeper.ask("model", "show", "net")["changes"] == ["hidden.py was modified"])
    # What of ours runs it is no part of the model: a new version of it is no reason to prove it anew.
    with contextlib.closing(sqlite3.connect(f"file:{keeper.state}/catalog.sqlite?mode=ro", uri=True)) as catalog:
        (document,) = (document for (document,) in catalog.execute("SELECT document FROM dependencies"))
    assert str(LIBEXEC) not in document


@pytest.mark.timeout(300)
def test_what_a_changed_file_made_slower_is_told_until_somebody_has_seen_it(keeper: Daemon, application: Path) -> None:
    keeper.start()
    register(keeper, application)
    for _ in range(4):
        keeper.ctl("prewarm", "--force", "net")
    assert "Slower or faster" not in keeper.ctl("status").stdout
    (application / "helper.py").write_text("import time\n\nKERNEL = 1\ntime.sleep(2)\n")
    keeper.until(lambda: stands(keeper) == ("changed", 1))
    keeper.ctl("prewarm", "--stale")

    for words in (("status",), ("why", "net")):
        said = " ".join(keeper.ctl(*words).stdout.split())
        assert "helper.py was modified" in said, said
        assert "slower" in said.lower()
    (event,) = [one for one in keeper.rows("events") if one["topic"] == "figure-shifted"]
    assert isinstance(event["fields"], dict)
    assert event["fields"]["changes"] == "helper.py was modified"
    assert float(event["fields"]["after"]) > float(event["fields"]["before"]) + 1.5
    # It is kept over a restart, and gone once it was seen.
    keeper.end()
    keeper.start()
    assert "helper.py was modified" in keeper.ctl("status").stdout
    assert "helper.py was modified" in keeper.ctl("seen", "net").stdout
    assert "Slower or faster" not in keeper.ctl("status").stdout
    assert keeper.ctl("seen").stdout == "nothing became slower or faster that nobody had seen\n"
