"""`xpucachectl setup`: everything in place, told, again and again; nobody's changes lost; and away again."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

import manual
import pytest

from tests import REPOSITORY
from tests.support import hosts
from xpucached import cli
from xpucached.cli import installation, installed_files
from xpucached.cli.installation import StepKind

if TYPE_CHECKING:
    from collections.abc import Iterator

SERVICE: Final = "usr/local/lib/systemd/system/xpucached.service"
RECORD: Final = "usr/local/share/xpucached/setup.json"


@pytest.fixture(autouse=True)
def _reachable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the commands lie where a service can see them, as they do in production."""
    monkeypatch.setattr(installation, "programs", lambda: Path("/usr/bin"))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    place = tmp_path / "root"
    place.mkdir()
    return place


def run(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    status = cli.main(["setup", *map(str, words)])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def steps(capsys: pytest.CaptureFixture[str], *words: object) -> dict[str, list[str]]:
    """Return what each verb was done to."""
    status, out, _ = run(capsys, "--json", *words)
    found: dict[str, list[str]] = {}
    for one in json.loads(out)["data"]["steps"]:
        assert not one["failed"]
        found.setdefault(one["step"], []).append(one["what"])
    assert status == 0
    return found


def contents(place: Path) -> dict[str, bytes]:
    return {str(path.relative_to(place)): path.read_bytes() for path in place.rglob("*") if path.is_file()}


def test_a_root_gets_units_that_start_this_installation(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    done = steps(capsys, "--system", "--root", root)
    there = contents(root)

    assert set(done) <= {StepKind.PUT, StepKind.SKIP}
    assert sorted(str(root / name) for name in there if name != RECORD) == sorted(done[StepKind.PUT])
    assert {path.name for path in (REPOSITORY / "systemd").glob("*.service")} <= {Path(name).name for name in there}
    assert b"ExecStart=/usr/bin/xpucached --system" in there[SERVICE]
    assert (root / SERVICE).stat().st_mode & 0o777 == 0o644
    assert "etc/sysusers.d/xpucached.conf" in there
    # What switches the cache on for everybody is an example, which nobody asked for.
    assert not any("environment" in name for name in there)


def test_what_the_host_is_given_all_its_users_get_to(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = os.umask(0o077)
    try:
        run(capsys, "--system", "--root", root)
    finally:
        os.umask(before)

    assert {path.stat().st_mode & 0o777 for path in root.rglob("*") if path.is_dir()} == {0o755}


def test_every_file_that_is_packed_has_a_place_or_is_an_example(tmp_path: Path) -> None:
    place = installation.Place.of(user=False, root=tmp_path, environ={})
    files = {path.relative_to(REPOSITORY / "systemd").as_posix() for path in (REPOSITORY / "systemd").rglob("*.*")}
    names = {name for name in files if (REPOSITORY / "systemd" / name).is_file()}
    left = {name.partition("/")[0] for name in names if place.target(name) is None}

    # Packages bring the journal's texts; who installs from a clone finds the line in docs/operations.md.
    assert left <= {"catalog", "environment.d", "examples", "system-preset"}


def test_man_pages_and_completions_go_where_they_are_looked_for(
    root: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    manual.write(tmp_path / "data" / "manual")
    (tmp_path / "units").symlink_to(REPOSITORY / "systemd")
    monkeypatch.setattr(installation, "_PACKAGE", tmp_path)
    run(capsys, "--system", "--root", root)
    share = {name for name in contents(root) if name.startswith("usr/local/share/")}

    assert {f"usr/local/share/man/man{name[-1]}/{name}" for name in manual.PAGES} <= share
    assert "usr/local/share/bash-completion/completions/xpucachectl" in share
    assert "usr/local/share/zsh/site-functions/_xpucachectl" in share
    assert "usr/local/share/fish/vendor_completions.d/xpucachectl.fish" in share


def test_a_dry_run_changes_nothing(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(capsys, "--system", "--root", root, "--dry-run")

    assert (status, contents(root)) == (0, {})
    assert f"put    {root / SERVICE}" in out
    assert "nothing was done" in out


def test_again_changes_nothing(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(capsys, "--system", "--root", root)
    before = contents(root)
    done = steps(capsys, "--system", "--root", root)

    assert set(done) <= {StepKind.SAME, StepKind.SKIP}
    assert contents(root) == before


def test_a_new_version_takes_the_place_of_ours(
    root: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run(capsys, "--system", "--root", root)
    files = {**installation.packed(), "xpucached.service": b"[Service]\nExecStart=xpucached --new\n"}
    del files["xpucached.socket"]
    monkeypatch.setattr(installation, "packed", lambda: files)
    done = steps(capsys, "--system", "--root", root)

    assert done[StepKind.UPDATE] == [str(root / SERVICE)]
    assert (root / SERVICE).read_text() == "[Service]\nExecStart=/usr/bin/xpucached --new\n"
    # What the new version has no more, goes.
    assert done[StepKind.REMOVE] == [str((root / SERVICE).with_suffix(".socket"))]
    assert not (root / SERVICE).with_suffix(".socket").exists()


class Killed(BaseException):
    """What nobody catches."""


def test_what_was_being_updated_when_somebody_died_stays_ours(
    root: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run(capsys, "--system", "--root", root)
    write = installed_files.write
    for version, before in ((b"--second\n", True), (b"--third\n", False)):
        files = {**installation.packed(), "xpucached.service": b"[Service]\nExecStart=xpucached " + version}
        monkeypatch.setattr(installation, "packed", lambda files=files: files)

        def killed(path: Path, content: bytes, *, before: bool = before) -> None:
            if path == root / SERVICE and before:
                raise Killed
            write(path, content)
            if path == root / SERVICE:
                raise Killed

        with monkeypatch.context() as dying:
            dying.setattr(installed_files, "write", killed)
            with pytest.raises(Killed):
                cli.main(["setup", "--system", "--root", str(root)])
        assert steps(capsys, "--system", "--root", root, "--remove", "--dry-run").keys() == {StepKind.REMOVE}

    assert (root / SERVICE).read_text() == "[Service]\nExecStart=/usr/bin/xpucached --third\n"
    assert steps(capsys, "--system", "--root", root).keys() <= {StepKind.SAME, StepKind.SKIP}
    digest = installed_files.digest((root / SERVICE).read_bytes())
    assert json.loads((root / RECORD).read_text())["files"][str(root / SERVICE)] == digest


@pytest.mark.parametrize("how", ["changed", "not ours", "a link"])
def test_what_the_administrator_made_of_a_file_stays(
    root: Path, capsys: pytest.CaptureFixture[str], how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if how != "not ours":
        run(capsys, "--system", "--root", root)
    path = root / SERVICE
    path.parent.mkdir(parents=True, exist_ok=True)
    if how == "a link":
        path.unlink()
        path.symlink_to("/dev/null")
    else:
        path.write_text("[Service]\nNice=5\n")
    files = {**installation.packed(), "xpucached.service": b"[Service]\nExecStart=xpucached --new\n"}
    monkeypatch.setattr(installation, "packed", lambda: files)
    for words in ((), ("--remove",)):
        status, out, _ = run(capsys, "--system", "--root", root, *words)

        assert status == 0
        if how == "a link":
            assert path.readlink() == Path("/dev/null")
        else:
            assert path.read_text() == "[Service]\nNice=5\n"
            assert f"keep   {path}" in out or how == "not ours"
    if how != "a link":
        assert set(contents(root)) == {SERVICE}


def test_everything_goes_again(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(capsys, "--system", "--root", root)
    assert contents(root)
    dry = steps(capsys, "--system", "--root", root, "--remove", "--dry-run")
    told = json.loads(run(capsys, "--json", "--system", "--root", root, "--remove", "--dry-run")[1])["data"]["next"]
    done = steps(capsys, "--system", "--root", root, "--remove")

    assert dry == done
    assert set(done) == {StepKind.REMOVE}
    assert contents(root) == {}
    # Where workers have their catalogs, above all.
    assert {"/var/lib/xpucached", "/var/lib/xpucached-worker"} <= set(told[0].split())
    status, out, _ = run(capsys, "--system", "--root", root, "--remove")
    assert (status, "nothing was set up" in out) == (0, True)


def test_a_file_that_cannot_be_written_is_told_and_the_others_go_on(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # A file where a directory has to be.
    (root / "etc").write_text("")
    status, out, _ = run(capsys, "--system", "--root", root)

    assert status == 1
    assert "FAILED put" in out
    assert (root / SERVICE).is_file()
    assert not any("sysusers" in path for path in json.loads((root / RECORD).read_text())["files"])


def test_a_record_that_cannot_be_read_is_refused(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (root / RECORD).parent.mkdir(parents=True)
    (root / RECORD).write_text("{")
    status, _, err = run(capsys, "--system", "--root", root, "--remove")

    assert (status, "move it away" in err) == (65, True)


@pytest.mark.parametrize("what", [RECORD, SERVICE])
def test_what_cannot_be_read_just_now_is_not_taken_for_gone(
    root: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    run(capsys, "--system", "--root", root)
    before, opening = contents(root), os.open

    def refuses(path: os.PathLike[str] | str, *arguments: int, **more: int) -> int:
        if os.fspath(path) == str(root / what):
            raise OSError(errno.EIO, "Input/output error")
        return opening(path, *arguments, **more)

    monkeypatch.setattr(os, "open", refuses)
    status, out, err = run(capsys, "--system", "--root", root, "--remove")
    monkeypatch.setattr(os, "open", opening)
    if what == RECORD:
        assert (status, "nobody knows what was set up" in err, contents(root)) == (65, True, before)
    else:
        assert (status, f"FAILED keep   {root / SERVICE}" in out, set(contents(root))) == (1, True, {RECORD, SERVICE})
    assert run(capsys, "--system", "--root", root, "--remove")[0] == 0
    assert contents(root) == {}


def test_a_user_sets_up_his_own(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    done = steps(capsys, "--user")
    there = contents(home)

    # A systemd of this user is told only where there is one.
    assert set(done) <= {StepKind.PUT, StepKind.SKIP, StepKind.RUN}
    assert b"ExecStart=/usr/bin/xpucached --user" in there[".local/share/systemd/user/xpucached.service"]
    assert all(name.startswith(".local/share/") for name in there)
    run(capsys, "--user", "--remove")
    assert contents(home) == {}


def test_a_program_that_services_cannot_reach_is_refused(
    root: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    closed = tmp_path / "closed"
    (closed / "bin").mkdir(parents=True)
    closed.chmod(0o700)
    monkeypatch.setattr(installation, "programs", lambda: closed / "bin")
    status, _, err = run(capsys, "--system", "--root", root)

    assert status == 65
    assert "in the clone: python3 -m venv /opt/xpucached && /opt/xpucached/bin/pip install ." in err
    assert contents(root) == {}


def test_beside_a_package_it_refuses(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    there = root / "usr/lib/systemd/system/xpucached.service"
    there.parent.mkdir(parents=True)
    there.touch()
    status, _, err = run(capsys, "--system", "--root", root)

    assert (status, "a package of the distribution" in err) == (65, True)


def test_a_link_beside_a_file_is_not_followed(root: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.write_text("mine")
    (root / SERVICE).parent.mkdir(parents=True)
    (root / SERVICE).symlink_to(mine)
    _, out, _ = run(capsys, "--system", "--root", root)

    assert f"keep   {root / SERVICE}" in out
    assert mine.read_text() == "mine"


# -- under a real systemd -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def machine(debian: Path) -> Iterator[hosts.Machine]:
    with hosts.boot(debian, hosts.needs()) as one:
        one.install_project()
        # As pip leaves it: the commands are in the environment, and the distribution knows nothing.
        for name in ("xpucached", "xpucachectl", "xpucached-watch"):
            one.run("mv", f"/usr/bin/{name}", f"/opt/xpucached/bin/{name}")
        here = one.out("sh", "-c", "echo /opt/xpucached/lib/python3*/site-packages/xpucached")
        one.put(REPOSITORY / "systemd", f"{here}/units")
        yield one


def test_without_rights_it_says_what_to_do(machine: hosts.Machine) -> None:
    done = machine.run("/opt/xpucached/bin/xpucachectl", "setup", "--system", user="nobody", check=77)

    assert "only root can" in done.stderr
    assert "xpucachectl setup --user" in done.stderr


@pytest.mark.timeout(600)
def test_what_is_set_up_runs_and_goes_again(machine: hosts.Machine) -> None:
    before = set(machine.out("find", "/etc", "/usr", "-not", "-name", "*.pyc", "-not", "-type", "d").splitlines())
    client = "/opt/xpucached/bin/xpucachectl"
    told = machine.out(client, "setup")
    assert "FAILED" not in told
    commands = [line.strip() for line in told.partition("next:\n")[2].splitlines()]
    assert commands[0] == "systemctl enable --now xpucached.service"

    # What it says to run next is run as it stands.
    for command in commands:
        machine.run("sh", "-c", command)
    assert machine.show("xpucached.service", "ActiveState") == "active"
    assert machine.show("xpucached.service", "FragmentPath") == "/usr/local/lib/systemd/system/xpucached.service"
    assert " 0 files" not in machine.out(client, "setup")

    gone = machine.out(client, "setup", "--remove")
    assert "FAILED" not in gone
    assert machine.show("xpucached.service", "LoadState") == "not-found"
    after = set(machine.out("find", "/etc", "/usr", "-not", "-name", "*.pyc", "-not", "-type", "d").splitlines())
    # The account stays, and with it what systemd-sysusers keeps beside the lists of accounts.
    assert {path for path in after - before if not path.endswith("-")} <= {"/etc/.pwd.lock"}
    assert before - after == set()
