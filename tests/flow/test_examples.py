"""The examples for Kubernetes and SLURM: by the schemas of the Kubernetes API, by shellcheck, and by our own parser."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from typing import TYPE_CHECKING, Final, cast

import pytest

from tests import REPOSITORY
from xpucached.cli import arguments, bundles
from xpucached.domain.bundles import ReplayBundle
from xpucached.errors import RequestError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from xpucached.messages import Json as Value

MANIFESTS: Final = sorted((REPOSITORY / "examples/kubernetes").glob("*.yaml"))
SCRIPTS: Final = sorted((REPOSITORY / "examples/slurm").iterdir())


def documents(path: Path) -> list[dict[str, Value]]:
    yaml = pytest.importorskip("yaml")
    return list(yaml.safe_load_all(path.read_text()))


def at(value: Value, *path: str) -> Value:
    """Return what lies there; None where nothing does."""
    for name in path:
        value = cast("Mapping[str, Value]", value).get(name) if isinstance(value, dict) else None
    return value


def items(value: Value, *path: str) -> list[Value]:
    return cast("list[Value]", at(value, *path) or [])


def pods(document: dict[str, Value]) -> Iterator[Value]:
    found = document.get("spec") if document["kind"] == "Pod" else at(document, "spec", "template", "spec")
    if found is not None:
        yield found


def commands(container: Value) -> Iterator[list[str]]:
    """Yield the lines of ours that a container starts, word by word."""
    words = cast("list[str]", [*items(container, "command"), *items(container, "args")])
    if words[:2] == ["sh", "-c"]:
        assert subprocess.run(["/bin/sh", "-n", "-c", words[2]], check=False).returncode == 0
        words = shlex.split(words[2].partition("||")[0])
    if words:
        assert words[0] == "xpucachectl"
        yield words[1:]


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.name)
def test_a_manifest_is_one_to_the_schema_of_kubernetes(path: Path) -> None:
    validator = pytest.importorskip("kubernetes_validate")
    for document in documents(path):
        validator.validate(document, validator.latest_version(), strict=True)
        spoilt: dict[str, Value] = {**document, "spec": {"conatiners": []}, "dta": {}}
        with pytest.raises(validator.ValidationError):
            validator.validate(spoilt, validator.latest_version(), strict=True)


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.name)
def test_what_a_manifest_names_is_there(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    typed = 0
    maps = {at(one, "metadata", "name"): one for one in documents(path) if one["kind"] == "ConfigMap"}
    for document in documents(path):
        for pod in pods(document):
            volumes = {at(one, "name"): one for one in items(pod, "volumes")}
            used = set()
            for container in (*items(pod, "initContainers"), *items(pod, "containers")):
                for mount in items(container, "volumeMounts"):
                    used.add(at(mount, "name"))
                    source = maps.get(at(volumes[at(mount, "name")], "configMap", "name"))
                    if at(mount, "subPath") is not None:
                        assert at(mount, "subPath") in cast("Mapping[str, Value]", at(source, "data"))
                for words in commands(container):
                    typed += 1
                    options = arguments.parse(words)
                    if options.verb == "replay":
                        counted(document, container, monkeypatch)
            assert used == set(volumes)
    assert typed or path.name == "image-volume.yaml"


def counted(document: Value, container: Value, monkeypatch: pytest.MonkeyPatch) -> None:
    """See that the parts of a job are all parts of the whole."""
    count = cast("int", at(document, "spec", "completions"))
    given = {at(one, "name"): at(one, "value") for one in items(container, "env")}
    assert (at(document, "spec", "completionMode"), given["JOB_COMPLETIONS"]) == ("Indexed", str(count))
    monkeypatch.setenv("JOB_COMPLETIONS", str(count))
    for index in range(count):
        monkeypatch.setenv("JOB_COMPLETION_INDEX", str(index))
        assert bundles._shard("auto") == (index, count)


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_a_script_is_in_order(path: Path) -> None:
    assert os.access(path, os.X_OK)
    subprocess.run(["/bin/bash", "-n", path], check=True)
    if shutil.which("shellcheck") is None:
        pytest.skip("there is no shellcheck here")
    subprocess.run([shutil.which("shellcheck") or "", path], check=True)


def test_what_slurm_is_told_compiles_all_parts_and_then_exports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The scripts themselves run, with a SLURM that only notes what it is asked, and a command that notes its words."""
    noted = tmp_path / "noted"
    for name, more in (("xpucachectl", ""), ("sbatch", "\necho '7;cluster'")):
        (tmp_path / name).write_text(f'#!/bin/sh\nprintf "%s\\n" "$WARM" "{name}" "$@" "" >>{noted}{more}\n')
        (tmp_path / name).chmod(0o755)
    environ = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    folder = REPOSITORY / "examples/slurm"
    subprocess.run([folder / "submit.sh", "/shared/warm"], env=environ, check=True, capture_output=True)
    asked = [one.splitlines() for one in noted.read_text().split("\n\n") if one]
    assert asked == [
        ["/shared/warm", "sbatch", "--parsable", "--export=ALL", "farm.sbatch"],
        ["/shared/warm", "sbatch", "--dependency=afterok:7", "--export=ALL", "export.sbatch"],
    ]
    noted.unlink()

    script = (folder / "farm.sbatch").read_text()
    first, last = map(int, re.findall(r"^#SBATCH --array=(\d+)-(\d+)$", script, re.MULTILINE)[0])
    count = last - first + 1
    task = {"SLURM_ARRAY_TASK_COUNT": str(count), "SLURM_ARRAY_TASK_MIN": str(first)}
    shards = []
    for index in range(first, last + 1):
        mine = {**task, "SLURM_ARRAY_TASK_ID": str(index)}
        if index in {first, last}:
            subprocess.run([folder / "farm.sbatch"], env={**environ, **mine, "WARM": "/shared/warm"}, check=True)
        for name, text in mine.items():
            monkeypatch.setenv(name, text)
        shards.append(bundles._shard("auto"))
    assert shards == [(index, count) for index in range(count)]
    subprocess.run([folder / "export.sbatch"], env={**environ, "WARM": "/shared/warm"}, check=True)
    typed = [arguments.parse(one.splitlines()[2:]) for one in noted.read_text().split("\n\n") if one]
    assert [one.verb for one in typed] == ["replay", "replay", "bundle export"]
    order = bundles._replay(typed[0])
    assert isinstance(order, ReplayBundle)
    assert order.into == typed[2].store


def test_a_place_in_an_array_is_what_the_system_says(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("JOB_COMPLETION_INDEX", "JOB_COMPLETIONS", "SLURM_ARRAY_TASK_ID", "SLURM_ARRAY_TASK_COUNT"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(RequestError, match="nothing says which part"):
        bundles._shard("auto")
    # An array that begins at 5: its first task is part 0.
    for name, text in (("ID", "7"), ("COUNT", "4"), ("MIN", "5")):
        monkeypatch.setenv(f"SLURM_ARRAY_TASK_{name}", text)
    assert bundles._shard("auto") == (2, 4)
    for wrong in ("9", "x", "-1"):
        monkeypatch.setenv("SLURM_ARRAY_TASK_ID", wrong)
        with pytest.raises(RequestError, match="no part"):
            bundles._shard("auto")


def test_a_cluster_is_named_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    assert bundles._cluster("dask://127.0.0.1:8786") == "tcp://127.0.0.1:8786"
    assert bundles._cluster("dask+tls://farm.example:1") == "tls://farm.example:1"
    for wrong in ("dask://host", "ray://host:1", "dask://a b:1", "dask://host:1/x", "tcp://host:1"):
        with pytest.raises(RequestError, match="no scheduler"):
            bundles._cluster(wrong)
    with pytest.raises(RequestError, match="makes parts itself"):
        bundles._replay(
            arguments.parse(["replay", "--bundle", "b", "--into", "d", "--shard", "0/2", "--on", "dask://host:1"])
        )


def test_the_fingerprint_is_written_whole_where_it_is_looked_for(tmp_path: Path) -> None:
    """The lines of the unit run, with a command that says which form it was asked for."""
    unit = REPOSITORY / "examples/systemd/xpucached-fingerprint.service"
    if shutil.which("systemd-analyze") is not None:
        units = (unit, unit.with_suffix(".timer"))
        told = subprocess.run(
            ["/usr/bin/systemd-analyze", "verify", *units], capture_output=True, text=True, check=False
        )
        assert (told.returncode, told.stderr) == (0, "")
    command = tmp_path / "xpucachectl"
    text = '#!/bin/sh\necho "$@"\n[ "$2" != --nfd ]\n'
    command.write_text(text)
    command.chmod(0o755)
    lines = re.findall(r"^ExecStart=(.*)$", unit.read_text(), re.MULTILINE)
    found = {}
    for line in lines:
        words = shlex.split(line.replace("$$", "$"))
        place = tmp_path / words[-2].strip("/").replace("/", "-")
        words = [*words[:-2], str(place), words[-1]]
        environ = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
        assert subprocess.run(words, env=environ, check=False).returncode == 0
        assert not place.exists()
        place.mkdir()
        place.joinpath(words[-1]).write_text("before\n")
        # What the account may have put there whose directory it is.
        place.joinpath(f".{words[-1]}.new").symlink_to(command)
        status = subprocess.run(words, env=environ, check=False).returncode
        found[words[-1]] = (status, place.joinpath(words[-1]).read_text())
        assert arguments.parse(["fingerprint", words[3]]).verb == "fingerprint"
    assert command.read_text() == text
    assert found == {
        "xpucached-host.prom": (0, "fingerprint --prometheus\n"),
        # What cannot be said leaves what was said before.
        "xpucached": (1, "before\n"),
        "xpucached.fact": (0, "fingerprint --ansible\n"),
    }
