"""A daemon of another user: what it warms, evicts and looks at stays within that user's rights.  Needs root."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.support.builders import SyclStore
from tests.support.daemons import Daemon, daemon
from tests.support.users import NOBODY, interpreter, site, unused, user

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.support.runtimes import Runtime
    from tests.support.users import User

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")


def everything(place: Path) -> dict[str, tuple[int, int, int, int]]:
    """Return what there is below a directory: owner, mode, size and time of each."""
    found = {}
    for path in (place, *place.rglob("*")):
        status = path.lstat()
        found[str(path)] = (status.st_uid, status.st_mode, status.st_size, status.st_mtime_ns)
    return found


@pytest.fixture
def theirs(short_dir: Path) -> Iterator[Daemon]:
    """Return a daemon that runs as the other user, with a home of its own."""
    short_dir.chmod(0o755)
    _, further = interpreter(short_dir / "site")
    home, run = short_dir / "home", short_dir / "run"
    for place in (home, run):
        place.mkdir(mode=0o700)
        os.chown(place, NOBODY, NOBODY)
    folders = {
        "HOME": str(home),
        "XDG_CACHE_HOME": str(home / ".cache"),
        "XDG_CONFIG_HOME": str(home / ".config"),
        "XDG_STATE_HOME": str(home / ".local/state"),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    with daemon(home, run, **folders, **further) as one:
        os.chown(run, NOBODY, NOBODY)
        one.config.parent.mkdir(parents=True)
        yield one


def start(one: Daemon, program: str) -> None:
    """Start it as that user, who alone believes what it says."""
    one.program, one.uid = program, NOBODY
    for path in (one.home, *one.home.rglob("*")):
        os.chown(path, NOBODY, NOBODY, follow_symlinks=False)
    with one.log.open("ab") as log:
        one.process = subprocess.Popen(
            [program, "-m", "xpucached", "--user"],
            env=one.environment,
            cwd="/",
            stdout=log,
            stderr=log,
            user=NOBODY,
            group=NOBODY,
            extra_groups=[],
        )
    one.until(lambda: one.ask("status").get("verdict") not in (None, "starting"))


@pytest.mark.runtime
@pytest.mark.timeout(600)
def test_a_prewarm_as_another_user_touches_nothing_outside_that_users_rights(
    theirs: Daemon, short_dir: Path, runtime: Callable[[str], Runtime]
) -> None:
    real = runtime("rt2025.2")
    program, _ = interpreter(short_dir / "site")
    closed, readable = short_dir / "closed", short_dir / "readable"
    for place, mode in ((closed, 0o700), (readable, 0o755)):
        SyclStore(place / "store").add("_ZTS3one", driver="old")
        place.chmod(mode)
    (theirs.home / "link").symlink_to(closed / "store")
    before = {place: everything(place) for place in (closed, readable)}
    variables = f"{{ LD_LIBRARY_PATH = '{real.lib}', OCL_ICD_FILENAMES = '{real.driver}' }}"
    theirs.configure(
        f"[stores]\npaths = ['{readable}/store', '{closed}/store']\n[driver]\nvariables = {variables}\n"
        "[policy]\ngrace = '0s'\nkeep_driver_generations = 0\nmax_unused = '1s'\n"
        "[schedule]\nsettle = '0.1s'\nprewarm = false\n"
    )
    start(theirs, program)

    build = [
        program,
        "-I",
        "-S",
        "-B",
        str(short_dir / "site" / "xpucached" / "libexec" / "sycl_check.py"),
        "--library",
        str(real.lib / "libsycl.so.8"),
        "--layout",
        "2",
    ]
    add = ("model", "add", "--directory", "/", "--env", f"LD_LIBRARY_PATH={real.lib}")
    said = {}
    for name, store in (
        ("mine", "default"),
        ("closed", str(closed / "store")),
        ("linked", str(theirs.home / "link")),
        ("readable", str(readable / "store")),
        ("beyond", str(closed / "new")),
    ):
        theirs.ctl(*add, "--store", store, name, "--", *build, "--shape", "parts")
        said[name] = theirs.ctl("prewarm", name, check=None)
    made = everything(theirs.home / ".cache")
    theirs.ctl("evict", check=None)
    theirs.ctl("replay", check=None)
    outcomes = {row["model"]: row["outcome"] for row in theirs.rows("runs")}
    assert theirs.end() == 0

    # Its own it warms; nothing of others was proven, nor run where it cannot be read; theirs is as it was.
    assert outcomes == {"mine": "warmed", "readable": "unproven"}
    for name in ("closed", "linked", "beyond"):
        assert said[name].returncode == 1
        assert "cannot be read" in said[name].stdout
        assert "Permission denied" in said[name].stdout
    assert {place: everything(place) for place in before} == before
    assert any(name.endswith(".bin") for name in made)
    assert {owner for owner, *_ in made.values()} == {NOBODY}


def installed(place: Path) -> tuple[str, dict[str, str]]:
    """Return a Python that other users may start, and that finds us without variables, as isolated programs must."""
    program, variables = interpreter(place)
    subprocess.run([program, "-m", "venv", "--without-pip", place / "venv"], check=True)
    [libraries] = (place / "venv").glob("lib/python3.*/site-packages")
    (libraries / "ours.pth").write_text("".join(f"{one}\n" for one in variables["PYTHONPATH"].split(":")))
    return str(place / "venv/bin/python"), {}


@pytest.mark.runtime
@pytest.mark.timeout(600)
def test_what_one_user_exported_is_taken_in_by_another_who_trusts_the_key_and_compiles_nothing(
    runtime: Callable[[str], Runtime],
) -> None:
    pytest.importorskip("cryptography")
    real = runtime("rt2025.2")
    with site() as place:
        program, variables = installed(place)
        driver = {"LD_LIBRARY_PATH": str(real.lib), "OCL_ICD_FILENAMES": str(real.driver)}
        maker, taker = (user(unused(number), place, program, variables | driver) for number in range(2))
        check = place / "xpucached/libexec/sycl_check.py"
        words = (program, "-I", "-S", "-B", check, "--layout", "2", "--shape", "parts")

        def compiled(one: User) -> tuple[int, int]:
            """Let that user run a program; give how many entries it found, and how many it made."""
            cache = real.environment(one.home / "store", trace=True, plain=True) | {"HOME": str(one.home)}
            done = one.call(*words, "--library", real.lib / "libsycl.so.8", env=cache)
            told = done.stdout + done.stderr
            return told.count("using cached device binary"), told.count("has been cached")

        def taken() -> dict[str, dict[str, object]]:
            into = ("--into", taker.home / "store", "--binaries=require", "--json")
            told: dict[str, dict[str, object]] = json.loads(
                taker.ctl("bundle", "import", bundle, *into, check=None).stdout
            )
            return told

        found, made = compiled(maker)
        assert (found, made > 0) == (0, True)
        maker.ctl("bundle", "keygen", maker.home / "key")
        bundle = place / "bundle.tar"
        maker.ctl(
            "bundle",
            "export",
            maker.home / "bundle.tar",
            "--store",
            maker.home / "store",
            "--sign",
            maker.home / "key.key",
        )
        shutil.copy(maker.home / "bundle.tar", bundle)
        bundle.chmod(0o644)

        # Who made it is nobody whom the other one trusts, until the key lies there.
        assert taken()["error"]["code"] == "unsigned"
        assert not (taker.home / "store").exists()
        trusted = taker.home / ".config/xpucached/trust.d"
        trusted.mkdir(parents=True)
        shutil.copy(maker.home / "key.pub", trusted)
        taker.owns(taker.home / ".config")
        report = taken()["data"]
        assert (report["published"], report["rebuilt"]) == (made, 0)
        assert compiled(taker) == (made, 0)
        assert {path.lstat().st_uid for path in (taker.home / "store").rglob("*")} == {taker.uid}
