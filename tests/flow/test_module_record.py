"""What Pythons write down of a model's run: the files that they run code of, in programs that notice nothing of it."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import shlex
import shutil
import subprocess
import sys
import textwrap
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests import INSTANCE
from xpucached.domain.dependencies import Role
from xpucached.domain.models import Workload
from xpucached.domain.workloads import RunSpec
from xpucached.host import proofs
from xpucached.host.dependency_changes import DependencyChecker
from xpucached.host.python_packages import site_of
from xpucached.processes.module_record import recording
from xpucached.processes.output import Trace
from xpucached.processes.results import RunResult
from xpucached.processes.runs import LIBEXEC
from xpucached.processes.supervised import ProcessStarter

if TYPE_CHECKING:
    from collections.abc import Iterator

PYTHON = shlex.quote(sys.executable)


def site_packages(environment: Path) -> Iterator[Path]:
    """Make an environment, and give where its packages lie."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
    return environment.glob("lib/python*/site-packages")


def execute(workload: Workload, **base: str) -> RunResult:
    starter = ProcessStarter({**os.environ, **base}, INSTANCE)
    return asyncio.run(starter.execute(workload, {}, Trace(), polite=True))


def ran(directory: Path, *command: str, **variables: str) -> RunResult:
    done = execute(Workload(command, directory, variables, 60))
    assert done.outcome is None, done.output
    return done


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Return a directory with a package, a module and a file that Python can run."""
    for path, text in (
        ("app/main.py", "import net\n"),
        ("app/net.py", ""),
        ("lib/pk/__init__.py", ""),
        ("lib/pk/inner.py", "X = 1\n"),
        ("lib/rules.txt", "Y = 2\n"),
    ):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    return tmp_path


LOADED = {
    "a computed name": "__import__('importlib').import_module('p' + 'k.inn' + 'er')",
    "a changed directory": "import os, sys; os.chdir('../lib'); sys.path[0] = ''; from pk import inner",
    "a file that is run": "exec(compile(open('../lib/pk/inner.py').read(), '../lib/pk/inner.py', 'exec'))",
    "a file that is loaded": """
        from importlib import util
        spec = util.spec_from_file_location("x", "".join(["../lib/pk/", "inner", ".py"]))
        spec.loader.exec_module(util.module_from_spec(spec))
    """,
    "a process of its own": "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import pk.inner'])",
    "a process that is forked": """
        import multiprocessing, pickle
        one = multiprocessing.get_context("fork").Process(target=__import__, args=("pk.inner",))
        one.start(); one.join()
    """,
    "a program that ends itself": "import os, pk.inner; os._exit(0)",
    "a program that closes all": "import os; os.closerange(3, 1024); import pk.inner",
    "a program that puts others in the places of functions": """
        import os; from unittest import mock
        with mock.patch("os.path.exists", return_value=False), mock.patch("os.open"), mock.patch("os.close"):
            import pk.inner
    """,
    "a program that allows no record after that of a module": """
        import sys, pk.inner
        sys.addaudithook(lambda event, of: 1 / 0 if event == "open" and str(of[0]).endswith("record") else None)
        import net
    """,
    "a program that says of itself what Python says": """
        import sys; [sys.audit(name, *some) for name in ("exec", "import", "ctypes.dlopen") for some in ((), (None,))]
        import pk.inner
    """,
    "a thread": "import threading as t; one = t.Thread(target=__import__, args=['pk.inner']); one.start(); one.join()",
}


@pytest.mark.parametrize("way", LOADED)
def test_whatever_way_code_is_loaded_its_file_is_known(place: Path, way: str) -> None:
    (place / "app/main.py").write_text(textwrap.dedent(LOADED[way]))
    done = ran(place / "app", sys.executable, "main.py", PYTHONPATH="../lib")
    assert {f"{place}/app/main.py", f"{place}/lib/pk/inner.py"} <= set(done.modules)


@pytest.mark.parametrize(
    "script",
    [
        f"cd app; {PYTHON} main.py",
        f"export PYTHONPATH=$PYTHONPATH:lib; cd app; {PYTHON} main.py",
        f"exec nice {PYTHON} app/main.py",
        f"{PYTHON} -c 'import os, sys; os.execv(sys.executable, [sys.executable, \"app/main.py\"])'",
    ],
)
def test_whatever_starts_a_python_its_files_are_known(place: Path, script: str) -> None:
    done = ran(place, "/bin/bash", "-c", script)
    assert {f"{place}/app/main.py", f"{place}/app/net.py"} == set(done.modules)


def test_of_an_archive_that_is_known_from_which_code_comes(place: Path) -> None:
    with zipfile.ZipFile(place / "code.bin", "w") as archive:
        archive.writestr("zipped/__init__.py", "")
    done = ran(place, sys.executable, "-c", "import sys; sys.path.append('code' + '.bin'); import zipped")
    assert done.modules == (f"{place}/code.bin",)


def test_what_is_no_file_is_installed_or_is_python_s_own_is_not_told(place: Path) -> None:
    text = "import json, decimal, sys, pytest, collections; collections.namedtuple('A', 'b'); exec('X = 1')"
    told = ran(place, sys.executable, "-c", text).modules
    # Of packages, whatever is imported of them, it is told where they lie.
    assert [site_of(one) for one in told] == list({site_of(one): None for one in told})
    assert None not in map(site_of, told)
    gone = "import os; open('gone.py', 'w'); os.unlink('gone.py'); exec(compile('', 'gone.py', 'exec'))"
    assert ran(place, sys.executable, "-c", gone).modules == ()


def test_compiled_modules_and_libraries_are_known_by_the_links_that_lead_to_them(place: Path) -> None:
    (place / "now").symlink_to("lib")
    module = Path(str(importlib.util.find_spec("msgspec._core").origin))  # type: ignore[union-attr]
    shutil.copyfile(module, place / "lib" / module.name)
    words = Path("/proc/self/maps").read_text(encoding="utf-8").split()
    shutil.copyfile(next(word for word in words if Path(word).name.startswith("libm.so")), place / "lib/libown.so")
    text = """
        import contextlib, ctypes, sys
        sys.path.append("n" + "ow")
        with contextlib.suppress(ImportError): import _core
        ctypes.CDLL("n" + "ow/libown.so"); ctypes.CDLL("libm.so.6"); ctypes.CDLL(None)
    """
    told = ran(place, sys.executable, "-c", textwrap.dedent(text), PYTHONPATH="").modules
    assert {one for one in told if site_of(one) is None} == {f"{place}/now/{module.name}", f"{place}/now/libown.so"}


def test_of_a_loader_s_run_the_model_s_files_are_known_and_none_of_ours(place: Path) -> None:
    (place / "app/main.py").write_text("import net\n\ndef load(device):\n    return lambda: None\n")
    spec = RunSpec(loader="python", python=sys.executable, target="main:load", device="cpu")  # type: ignore[arg-type]
    done = execute(Workload((), place / "app", {}, 60, spec))
    assert set(done.modules) == {f"{place}/app/main.py", f"{place}/app/net.py"}, done
    assert not any(one.startswith(f"{LIBEXEC}") for one in done.modules)


LOOKS = "import os, sys; print(sys.path, os.listdir(os.environ['TMPDIR']))"


@pytest.mark.parametrize(
    ("given", "script"),
    [
        ("", f"exec {PYTHON} app/looks.py"),
        ("/one:two", f"exec {PYTHON} app/looks.py"),
        (":/one", f"exec {PYTHON} app/looks.py"),
        ("/one", f"PYTHONPATH=$PYTHONPATH:/two exec {PYTHON} app/looks.py"),
        ("/one", f"PYTHONPATH=/two:$PYTHONPATH exec {PYTHON} app/looks.py"),
        ("", f"PYTHONPATH=/two${{PYTHONPATH:+}} exec {PYTHON} app/looks.py"),
        ("", f"PYTHONPATH+=/two exec {PYTHON} app/looks.py"),
        ("", f"PYTHONPATH+=two exec {PYTHON} app/looks.py"),
        ("", f"PYTHONPATH=$PYTHONPATH:$PWD exec {PYTHON} app/looks.py"),
        ("", f"PYTHONPATH=${{PYTHONPATH:+$PYTHONPATH:}}$PWD exec {PYTHON} app/looks.py"),
        ("", f"cd app; PYTHONPATH+=$PWD exec {PYTHON} -P looks.py"),
        ("/one", f"PYTHONPATH+=two exec {PYTHON} app/looks.py"),
        ("", f"exec {PYTHON} -I app/looks.py"),
    ],
)
def test_a_program_finds_all_as_it_would_be(place: Path, given: str, script: str) -> None:
    (place / "app/looks.py").write_text(LOOKS)
    (place / "empty").mkdir()
    variables = {"PYTHONPATH": given} if given else {}
    alone = subprocess.run(
        ["/bin/bash", "-c", script],
        env={"PATH": os.environ["PATH"], "TMPDIR": f"{place}/empty", **variables},
        cwd=place,
        check=True,
        stdout=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        text=True,
    )
    done = ran(place, "/bin/bash", "-c", script, **variables)
    assert done.output.strip().splitlines()[-1] == alone.stdout.strip()


def test_where_it_is_not_started_nothing_of_where_the_program_works_is_imported(place: Path) -> None:
    (place / "json.py").write_text("raise SystemExit(1)\n")
    (place / "app/main.py").write_text("import json\n")
    ran(place, sys.executable, "-S", "app/main.py")
    (place / "lib/sitecustomize.py").touch()
    ran(place, "/bin/bash", "-c", f"PYTHONPATH={place}/lib:$PYTHONPATH {PYTHON} app/main.py")


def test_however_much_is_installed_and_however_many_run_the_same_what_is_its_own_is_known(place: Path) -> None:
    (place / "app/main.py").write_text(
        "import os, subprocess, sys\n"
        "for number in range(5000):\n"
        "    exec(compile('', f'<{number}>', 'exec'))\n"
        "    exec(compile('', f'/x/site-packages/{number}.py', 'exec'))\n"
        "for number in range(5):\n"
        "    subprocess.run([sys.executable, 'app/net.py'], check=True)\n"
        "import net\n"
    )
    with recording("xpucached-test-", os.environ) as record:
        subprocess.run([sys.executable, "app/main.py"], cwd=place, env={**os.environ, **record.variables}, check=True)
        assert record.read() == (f"{place}/app/main.py", f"{place}/app/net.py")
        assert os.pread(record._descriptor, 1 << 20, 0).count(b"\n") == 3


def test_what_an_unset_variable_would_add_can_be_imported(place: Path) -> None:
    (place / "helper.py").touch()
    (place / "app/main.py").write_text("import helper\n")
    for script in (f"PYTHONPATH=$PYTHONPATH:/two {PYTHON} app/main.py", f"PYTHONPATH=/two: {PYTHON} app/main.py"):
        ran(place, "/bin/bash", "-c", script)
    # But it hides nothing.
    (place / "json.py").write_text("raise SystemExit(1)\n")
    (place / "app/main.py").write_text("import json\n")
    ran(place, "/bin/bash", "-c", f"PYTHONPATH=/two${{PYTHONPATH:+:$PYTHONPATH}} {PYTHON} app/main.py")


def test_a_sitecustomize_of_the_program_s_own_is_run(place: Path) -> None:
    (place / "lib/sitecustomize.py").write_text("import sys; sys.customized = __file__\n")
    (place / "app/main.py").write_text("import sys, sitecustomize; print(sys.customized, sitecustomize.__file__)\n")
    done = ran(place, sys.executable, "app/main.py", PYTHONPATH=f"{place}/lib")
    assert done.output.split() == [f"{place}/lib/sitecustomize.py"] * 2
    assert f"{place}/lib/sitecustomize.py" in done.modules


@pytest.mark.parametrize(
    "text", ["import sys, pathlib; sys.path.append(pathlib.Path('x'))", "import os; os.chdir('gone')"]
)
def test_what_stands_in_the_way_of_hiding_is_no_program_s_trouble(place: Path, text: str) -> None:
    (site,) = site_packages(place / "env")
    (site / "own.pth").write_text(f"{text}\n")
    (place / "gone").mkdir()
    script = (
        f"PYTHONPATH=$PYTHONPATH:/two exec {place}/env/bin/python -c 'import os, sys; print(sys.path, os.getcwd())'"
    )
    done = ran(place, "/bin/bash", "-c", script)
    assert "sitecustomize" not in done.output
    assert "alone" not in done.output


def test_what_such_a_file_raises_is_said_as_it_would_be(place: Path) -> None:
    (place / "lib/sitecustomize.py").write_text("raise ValueError('mine')\n")
    done = ran(place, sys.executable, "-c", "print('goes on')", PYTHONPATH=f"{place}/lib")
    assert "ValueError: mine" in done.output
    assert "goes on" in done.output


def test_a_program_that_writes_there_what_it_likes_does_no_harm(place: Path) -> None:
    (place / "app/main.py").write_text(
        "import os\n"
        "record = os.environ['PYTHONPATH'].partition(':')[0] + '/record'\n"
        "with open(record, 'ab') as file:\n"
        "    file.write(b'relative\\n/\\xff\\n/nul\\0\\n' + b'/x' * 3000 + b'\\n/said/by/it\\n' + b'\\n' * (1 << 20))\n"
        "os.unlink(record); os.mkfifo(record)\n"
        "import net\n"
    )
    done = ran(place, sys.executable, "app/main.py")
    assert set(done.modules) == {f"{place}/app/main.py", "/said/by/it"}


def test_where_a_name_would_end_the_variable_nothing_is_written_down(place: Path) -> None:
    (place / "a:b").mkdir()
    workload = Workload((sys.executable, "app/main.py"), place, {}, 60)
    os.environ["TMPDIR"], before = f"{place}/a:b", os.environ.get("TMPDIR")
    try:
        assert execute(workload).outcome is None
    finally:
        os.environ.pop("TMPDIR") if before is None else os.environ.update(TMPDIR=before)


@pytest.mark.parametrize("version", ["2.7", "3.6", "3.8", "3.9", "3.10", "3.12", "3.13", "3.14"])
def test_each_python_starts_with_it(place: Path, version: str) -> None:
    found = subprocess.run(
        ["/bin/sh", "-c", f"python{version} -c 'import sys; print(sys.executable)'"],
        check=False,
        capture_output=True,
        text=True,
    )
    if found.returncode:
        pytest.skip(f"there is no python{version} here")
    done = ran(place, found.stdout.strip(), "app/main.py")
    assert done.output == ""
    old = version in {"2.7", "3.6"}
    assert set(done.modules) == (set() if old else {f"{place}/app/main.py", f"{place}/app/net.py"})


@pytest.mark.parametrize("way", ["directory", "cd", "--chdir"])
def test_another_release_to_which_a_link_leads_is_a_change_though_only_pythons_tell_what_it_loads(
    tmp_path: Path, way: str
) -> None:
    now = tmp_path / "now"
    for release in ("v1", "v2"):
        (tmp_path / release).mkdir()
        (tmp_path / release / "wsgi.py").write_text("import importlib\nimportlib.import_module('set' + 'tings')\n")
        (tmp_path / release / "settings.py").write_text(f"RELEASE = {release!r}\n")
    now.symlink_to("v1")
    server = tmp_path / "gunicorn"
    server.write_text(
        f"#!{sys.executable}\nimport importlib, os, sys\nos.chdir(sys.argv[2])\nsys.path.insert(0, os.getcwd())\n"
        "importlib.import_module(sys.argv[-1])\n"
    )
    server.chmod(0o755)
    command = [str(server), "--chdir", str(now) if way == "--chdir" else ".", "wsgi"]
    if way == "cd":
        command = ["sh", "-c", f"cd {now} && exec {shlex.join(command)}"]
    of = Workload(tuple(command), now if way == "directory" else tmp_path, {}, 60)
    before = proofs.named(of, {})
    done = execute(of)
    assert done.outcome is None, done.output
    told = dict.fromkeys(done.modules, Role.MODULE)
    assert str(tmp_path / "v1/settings.py") in told
    needs = proofs.needed(of, before, done.mapped, (), told.items(), ())
    checker = DependencyChecker()
    assert checker.compare(needs, str(of.directory)).changes == ()
    now.unlink()
    now.symlink_to("v2")
    where = "now" if way != "directory" else str(now)
    assert f"{where} leads to {tmp_path}/v2 now" in checker.compare(needs, str(of.directory)).changes
