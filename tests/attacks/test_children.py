"""Somebody leaves code where a program of ours will start: in its directory, on its path, in its variables.

Every way in which this package starts a program is tried in such a place, and the list of them is complete.
"""

from __future__ import annotations

import ast
import asyncio
import contextlib
import hashlib
import os
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import sysconfig
import threading
import time
import uuid
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final
from unittest.mock import patch

import pytest

from tests import INSTANCE
from tests.support import catalogs
from tests.support.builders import sycl_target
from xpucached import guarded
from xpucached.api.requests import AddModel
from xpucached.catalog import opening, tables
from xpucached.cli import bundles, dry_imports, installed_files
from xpucached.domain.bundles import ImportBundle, InspectBundle
from xpucached.domain.libraries import SyclRuntime
from xpucached.domain.models import Workload
from xpucached.domain.names import EntryKey, KindName, ModelName
from xpucached.domain.plans import Recipe
from xpucached.domain.stores import EntryId, Store
from xpucached.domain.throttling import RunCause, RunPriority
from xpucached.domain.workloads import Loader, RunSpec
from xpucached.errors import NotFound, Unavailable, XpucachedError
from xpucached.host import package_tools, tools
from xpucached.hostd import units
from xpucached.kinds import sycl
from xpucached.kinds.sycl import preflight
from xpucached.processes import child, credential_helper, driver_probe, unpacking
from xpucached.processes.cgroup import Cgroup
from xpucached.processes.compiler import NoCompiler
from xpucached.processes.output import Trace
from xpucached.processes.supervised import ProcessStarter
from xpucached.processes.unpacking import UnpackFailed, UnpackLimits
from xpucached.service import taking

if TYPE_CHECKING:
    from collections.abc import Callable

PACKAGE: Final = Path(__file__).resolve().parents[2] / "xpucached"

_NAMES: Final = (
    *("xpucached", "json", "ctypes", "argparse", "resource", "contextlib", "struct", "pathlib", "hashlib"),
    *("sitecustomize", "usercustomize", "probe", "typing", "sqlalchemy"),
)
"""What programs of ours import, and what Python imports by itself."""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a directory in which every program leaves a trace that runs anything of it; it is where we are."""
    lair = tmp_path / "lair"
    lair.mkdir()
    ran = f"import io\nio.open({str(lair / 'ran')!r}, 'a').write(__file__ + '\\n')\n"
    for name in _NAMES:
        (lair / f"{name}.py").write_text(ran)
    (lair / "startup").write_text(ran)
    user = lair / "user" / "lib" / f"python3.{sys.version_info.minor}" / "site-packages"
    user.mkdir(parents=True)
    (user / "usercustomize.py").write_text(ran)
    (user / "evil.pth").write_text(ran.replace("\n", ";", 1).replace("\n", ""))
    for tool in ("systemctl", "dpkg-query", "rpm", "ldconfig", "systemd-run", "true", "python3"):
        script = lair / tool
        script.write_text(f"#!/bin/sh\necho tool {tool} >> {lair}/ran\n")
        script.chmod(0o755)
    library = preloaded(lair)
    monkeypatch.chdir(lair)
    for name, text in {
        "PYTHONPATH": str(lair),
        "PYTHONSTARTUP": str(lair / "startup"),
        "PYTHONUSERBASE": str(lair / "user"),
        "PYTHONINSPECT": "",
        "PYTHONHOME": "",
        "BASH_ENV": str(lair / "startup"),
        "ENV": str(lair / "startup"),
        "PATH": f":.:{os.environ['PATH']}:",
        "LD_PRELOAD": str(library) if library else "",
        "LD_AUDIT": str(library) if library else "",
    }.items():
        if text:
            monkeypatch.setenv(name, text)
    return lair


def preloaded(lair: Path) -> Path | None:
    """Make a library that leaves a trace in whatever loads it."""
    compiler = shutil.which("cc")
    if compiler is None:
        return None
    source = lair / "evil.c"
    source.write_text(
        "#include <fcntl.h>\n#include <unistd.h>\n"
        "__attribute__((constructor)) static void evil(void) {\n"
        f'  int f = open("{lair}/ran", O_CREAT | O_WRONLY | O_APPEND, 0644);\n'
        '  (void)!write(f, "preload\\n", 8); close(f);\n}\n'
        "unsigned int la_version(unsigned int version) { return version; }\n"
    )
    library = lair / "evil.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, source], check=True)
    return library


def traces(lair: Path) -> list[str]:
    """Return what ran."""
    try:
        return (lair / "ran").read_text().splitlines()
    except FileNotFoundError:
        return []


def ask_drivers(_lair: Path) -> None:
    report = driver_probe.ask({}, 30.0, backends=("opencl",))
    assert not {problem.code for problem in report.problems} & {"probe-failed", "probe-timed-out", "probe-garbled"}


def judge_runtime(lair: Path) -> None:
    said = preflight.check(SyclRuntime(lair / "libsycl.so.8", "build", 2), {}, datetime.now(UTC), 30.0)
    assert "cannot open shared object file" in said.evidence


def build_tiny_program(lair: Path) -> None:
    folder = lair.parent / "runtime"
    folder.mkdir()
    (folder / "libsycl.so.8").write_bytes(b"none")
    assert not preflight.build_tiny_program(folder, lair.parent / "cache", {}, "opencl:cpu", 30.0)


RECIPE: Final = Recipe(EntryId(Store(KindName("sycl"), Path("/s")), EntryKey("1/2/3/4/0")), b"", b"")


def compile_entry(_lair: Path) -> None:
    nothing = sycl_target("none", "none", "none", "none")
    spec = sycl.rebuilder.compiler(nothing, RECIPE.entry.store.root)
    compiler = ProcessStarter(os.environ, INSTANCE).compiler(spec, {})
    with pytest.raises(NoCompiler, match=r"no OpenCL device is none|libOpenCL"):
        compiler.build(RECIPE, threading.Event(), 30.0)


def run_model(lair: Path) -> None:
    elsewhere = lair.parent / "elsewhere"
    elsewhere.mkdir()
    workload = Workload(("/bin/sh", "-c", "ls -l /proc/$$/fd; exit 3"), elsewhere)
    done = asyncio.run(ProcessStarter(os.environ, INSTANCE).execute(workload, {}, Trace(), polite=False))
    assert done.exit_status == 3
    assert "secret" not in done.output


def bring_catalog_up(lair: Path) -> None:
    path = lair.parent / "catalog.sqlite"
    catalogs.older(path)
    opening.migrate_apart(path)
    with contextlib.closing(sqlite3.connect(path)) as direct:
        assert direct.execute("SELECT version_num FROM alembic_version").fetchall() == [(tables.REVISION,)]


def ask_package_manager(_lair: Path) -> None:
    assert tools.output(["sh", "-c", "echo $0 said"]) == "sh said\n"
    tools.output(["dpkg-query", "--version"])


def ask_for_a_group(lair: Path) -> None:
    run_priority = RunPriority(
        RunCause.MANUAL, nice=0, cpu_weight=100, io_weight=100, idle_io=False, waits=False, pauses=False
    )
    Cgroup(os.environ, lair).command(run_priority, memory=1, tasks=1, seconds=1)


def ask_systemd(_lair: Path) -> None:
    # It is here or not, and whether it answers is its own business.
    with contextlib.suppress(Unavailable):
        asyncio.run(units.unit_state(4711))


def set_up(_lair: Path) -> None:
    assert installed_files.run("sh -c exit") == ""
    assert installed_files.run("systemctl --no-such-option")


def ask_runtimes(lair: Path) -> None:
    judge_runtime(lair)
    build_tiny_program(lair)


def look_at_a_bundle(lair: Path) -> None:
    with pytest.raises(NotFound):
        bundles.asked(InspectBundle(lair / "none"), quiet=True)


def unpack_a_package(lair: Path) -> None:
    package = lair / "some.deb"
    package.write_bytes(b"none")
    with pytest.raises(UnpackFailed):
        unpacking.unpack(package, lair.parent / "into", UnpackLimits(seconds=30.0), threading.Event())


def ask_of_packages(lair: Path) -> None:
    package_tools.Versions("deb").holds("1", "lt", "2")
    assert len(package_tools._sha256(lair / "startup")) == len(hashlib.sha256().hexdigest())


def ask_for_an_account(lair: Path) -> None:
    helper = lair.parent / "helpers/docker-credential-some"
    helper.parent.mkdir()
    helper.write_text("#!/bin/sh\necho asked\n")
    helper.chmod(0o755)
    with patch.dict(os.environ, PATH=f"{helper.parent}:{os.environ['PATH']}"):
        done = credential_helper.ask("some", "localhost")
    assert done is not None
    assert done.output == b"asked\n"


def take_a_bundle_in(lair: Path) -> None:
    with pytest.raises(XpucachedError):
        taking._imported(ImportBundle(lair.parent / "none"), {}, threading.Event(), lambda _: None)


def look_for_modules(lair: Path) -> None:
    exercise = RunSpec(loader=Loader.VLLM, python=sys.executable, target=str(lair), inputs="random", device="cpu")
    assert list(dry_imports.notes(AddModel(name=ModelName("net"), directory=lair.parent, exercise=exercise)))


def close_what_was_sent(_lair: Path) -> None:
    ours, theirs = socket.socketpair()
    guarded.let_go(ours.detach())
    theirs.settimeout(60)
    assert theirs.recv(1) == b""
    theirs.close()
    for one in guarded._closers:
        one.wait(60)
    guarded.close_left()


WAYS: Final[dict[str, Callable[[Path], None]]] = {
    "processes/driver_probe.py": ask_drivers,
    "kinds/sycl/preflight.py": ask_runtimes,
    "host/tools.py": ask_package_manager,
    "processes/compiler.py": compile_entry,
    "processes/supervised.py": run_model,
    "processes/cgroup.py": ask_for_a_group,
    "catalog/opening.py": bring_catalog_up,
    "hostd/units.py": ask_systemd,
    "cli/installed_files.py": set_up,
    "cli/bundles.py": look_at_a_bundle,
    "processes/unpacking.py": unpack_a_package,
    "host/package_tools.py": ask_of_packages,
    "processes/credential_helper.py": ask_for_an_account,
    "service/taking.py": take_a_bundle_in,
    "cli/dry_imports.py": look_for_modules,
    "guarded.py": close_what_was_sent,
}
"""For each module that starts something, what makes it do so."""


@pytest.mark.parametrize("module", WAYS)
def test_nothing_that_lies_around_is_run(module: str, place: Path) -> None:
    WAYS[module](place)
    assert traces(place) == []


def test_the_place_would_be_noticed(place: Path) -> None:
    subprocess.run([sys.executable, "-c", "import json"], check=False)
    found = traces(place)
    assert any(line.startswith(str(place)) for line in found)
    assert "preload" in found or not (place / "evil.so").exists()


def test_every_way_to_start_a_program_is_tried() -> None:
    starting = {
        str(path.relative_to(PACKAGE))
        for path in PACKAGE.rglob("*.py")
        if path.name not in {"child.py", "scratch.py"}
        and any(
            isinstance(node, ast.Attribute)
            and node.attr in {"run", "start"}
            and isinstance(node.value, ast.Name)
            and node.value.id == "child"
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        )
    }
    assert starting == set(WAYS)


def test_a_child_inherits_no_descriptor_and_no_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    secret = tmp_path / "secret"
    secret.write_text("secret")
    with secret.open() as file, socket.socket() as listening:
        os.set_inheritable(file.fileno(), True)  # noqa: FBT003
        os.set_inheritable(listening.fileno(), True)  # noqa: FBT003
        command = ["/bin/sh", "-c", "ls -l /proc/$$/fd; pwd; ps -o sid= -p $$; echo $$"]
        done = child.run(command, variables=child.environment({}), seconds=30.0)
    text = done.output.decode()
    assert "secret" not in text
    assert "socket" not in text
    *_, directory, session, number = text.split()
    assert directory == "/"
    assert session == number
    assert text.count("->") == 3
    assert " 0 -> /dev/null" in text


def test_only_what_is_named_is_inherited(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = {"PATH": "/bin", "LD_LIBRARY_PATH": "/opt", "ZE_AFFINITY_MASK": "0", "LC_ALL": "C", "https_proxy": "p"}
    lost = (
        "LD_PRELOAD",
        "LD_AUDIT",
        "PYTHONPATH",
        "BASH_ENV",
        "GCONV_PATH",
        "LISTEN_FDS",
        "NOTIFY_SOCKET",
        "XPUCACHED_A",
    )
    for name in list(os.environ):
        monkeypatch.delenv(name)
    for name, text in {**kept, **dict.fromkeys(lost, "x")}.items():
        monkeypatch.setenv(name, text)
    assert child.environment({"MINE": "1"}) == {**kept, "MINE": "1"}


def test_a_python_of_ours_has_nothing_but_the_standard_library_on_its_path(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import sys; print(sys.flags.isolated, sys.flags.no_site, sys.path)")
    (tmp_path / "json.py").write_text("raise SystemExit('run')")
    done = child.run(child.python(script), variables={}, seconds=30.0)
    isolated, without_site, paths = done.output.decode().split(maxsplit=2)
    assert (isolated, without_site) == ("1", "1")
    assert str(tmp_path) not in paths
    assert sysconfig.get_paths()["purelib"] not in paths


MARK: Final = f"MARK={uuid.uuid4()}"
"""What the children of these tests have among their variables; not those of another run on this host."""


def marked() -> list[int]:
    """Return the processes that the child of a test has left."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if MARK.encode() in (entry / "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
    return found


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("sleep 1000", "did not end in time"),
        ("kill -STOP $$", "did not end in time"),
        ("trap '' TERM INT HUP; while :; do sleep 1; done", "did not end in time"),
        ("exec >&- 2>&-; sleep 1000", "did not end in time"),
        ("setsid sleep 1000 & exit 3", "ended with status 3"),
        ("(while :; do echo; done) & exit 3", "ended with status 3"),
        ("yes", "printed without end"),
        ("yes >&2", "printed without end"),
        ("kill -SEGV $$", "was ended by SIGSEGV"),
    ],
)
def test_whatever_a_child_does_the_question_comes_to_an_end(script: str, words: str) -> None:
    seconds = 2.0 if "in time" in words else 60.0
    variables = {"PATH": "/usr/bin:/bin", "MARK": MARK.removeprefix("MARK=")}
    done = child.run(["/bin/sh", "-c", script], variables=variables, seconds=seconds)
    assert done.words == words
    if "setsid" in script:
        # It left the session; only a supervisor ends those.
        for pid in marked():
            os.kill(pid, signal.SIGKILL)
    # What was killed may take a moment to be gone.
    end = time.monotonic() + 20
    while (left := marked()) and time.monotonic() < end:
        time.sleep(0.05)
    assert not left
