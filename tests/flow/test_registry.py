"""Bundles in a real registry, Debian's docker-registry, over TLS and with an account."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Final

import pytest

from tests.support import bundles, forks, registries
from tests.support.bundles import content
from xpucached.bundle import members
from xpucached.bundling import registries as bundling
from xpucached.domain.bundles import PullBundle, PushBundle, RegistryAccess
from xpucached.errors import BadBundle
from xpucached.registry import client
from xpucached.registry.retrying import Interrupted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path
    from urllib.parse import SplitResult

    from tests.support.registries import RealRegistry

CTL: Final = (sys.executable, "-m", "xpucached.cli", "bundle")
KILLS: Final = 2
"""Of each; `test_registry_kills.py` has more of them."""


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealRegistry]:
    with registries.real(tmp_path_factory.mktemp("registry")) as one:
        yield one


@pytest.fixture
def access(registry: RealRegistry, home: Path) -> RegistryAccess:
    registries.log_in(home / ".docker", registry.host)
    return RegistryAccess(registry.ca_file)


def ctl(*words: object, status: int = 0, **variables: str) -> dict[str, object]:
    """Run a command; give what it answered."""
    command = [*CTL, *map(str, words), "--json"]
    done = subprocess.run(command, env=os.environ | variables, capture_output=True, text=True, check=False)
    assert done.returncode == status, done.stdout + done.stderr
    told: dict[str, dict[str, object]] = json.loads(done.stdout)
    return told["error" if status else "data"]


def test_over_tls_with_the_account_of_a_helper(
    registry: RealRegistry, bundle: Path, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = f"{registry.host}/caches/app:v1"
    helper = tmp_path / "bin/docker-credential-own"
    helper.parent.mkdir()
    said = f'{{"Username":"{registries.USER}","Secret":"{registries.WORD}"}}'
    helper.write_text(f"#!/bin/sh\n[ \"$(cat)\" = {registry.host} ] && echo '{said}'\n", encoding="utf-8")
    helper.chmod(0o755)
    monkeypatch.setenv("PATH", f"{helper.parent}:{os.environ['PATH']}")
    own = tmp_path / "docker"
    own.mkdir()
    (own / "config.json").write_text(json.dumps({"credsStore": "own"}), encoding="utf-8")

    refused = ctl("push", bundle, place, status=69)
    assert refused["code"] == "registry"
    assert "certificate of localhost is not trusted" in str(refused["message"])
    refused = ctl("push", bundle, place, "--ca-file", registry.ca_file, status=77)
    assert (refused["code"], refused["message"]) == (
        "registry-denied",
        f"{registry.host} wants an account, and none for it is known here",
    )
    told = ctl("push", bundle, place, "--ca-file", registry.ca_file, DOCKER_CONFIG=str(own))
    assert (told["reference"], told["sent"], told["signatures"]) == (place, 4, 2)
    # Wherever the program for bundles is.
    monkeypatch.chdir(tmp_path)
    by = {"DOCKER_CONFIG": "docker", "SSL_CERT_FILE": os.path.relpath(registry.ca_file)}
    exact = f"{registry.host}/caches/app@{told['digest']}"
    pulled = ctl("pull", exact, tmp_path / "again", status=0, **by)
    assert pulled["fetched"] == told["bytes"]
    assert content(tmp_path / "again") == content(bundle)
    assert ctl("pull", place, tmp_path / "again", status=73, **by)["code"] == "already-there"
    assert ctl("pull", f"{registry.host}/none", tmp_path / "none", status=66, **by)["code"] == "not-found"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["again", "bin", "docker", "home"]


def test_chunks_that_break_off_go_on_and_what_is_spoilt_there_is_refused(
    registry: RealRegistry, bundle: Path, access: RegistryAccess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "_CHUNK", 150)
    whole = client.Registry._patch
    sent: list[int] = []

    def patch(self: client.Registry, url: SplitResult, piece: bytes, at: int) -> SplitResult:
        sent.append(at)
        if len(sent) == 2:
            raise Interrupted("the way there was cut")
        return whole(self, url, piece, at)

    monkeypatch.setattr(client.Registry, "_patch", patch)
    place = f"{registry.host}/chunks:v1"
    told = bundling.push(PushBundle(bundle, place, access), lambda *_: None)
    assert told.sent == 4
    assert sent[:3] == [0, 150, 150]
    pulled = bundling.pull(PullBundle(place, tmp_path / "bundle", access), lambda *_: None)
    assert content(tmp_path / "bundle") == content(bundle)
    with members.opened(tmp_path / "bundle").layout as layout:
        assert pulled.view.digest == members.Bundle(layout).index.digest

    # The registry's disk forgets a bit.
    layer = max((bundle / "blobs/sha256").iterdir(), key=lambda one: one.stat().st_size)
    stored = next(path for path in registry.storage.rglob("data") if path.read_bytes() == layer.read_bytes())
    stored.write_bytes(bytes([layer.read_bytes()[0] ^ 1]) + layer.read_bytes()[1:])
    try:
        with pytest.raises(BadBundle, match="not what its digest says"):
            bundling.pull(PullBundle(place, tmp_path / "spoilt", access), lambda *_: None)
    finally:
        stored.write_bytes(layer.read_bytes())
    assert not (tmp_path / "spoilt").exists()


def test_the_usual_port_may_be_named(
    registry: RealRegistry, bundle: Path, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a build's `$CI_SERVER_HOST:$CI_SERVER_PORT`; it is in no request, and in no address that comes back."""
    host = f"{registries.ELSEWHERE}:443"
    registries.log_in(home / ".docker", host)
    access = RegistryAccess(registry.ca_file)
    with registries.proxy(registry.host) as (where, _):
        monkeypatch.setenv("HTTPS_PROXY", f"http://{where}")
        bundling.push(PushBundle(bundle, f"{host}/ports:v1", access), lambda *_: None)
        bundling.pull(PullBundle(f"{host}/ports:v1", tmp_path / "bundle", access), lambda *_: None)
    assert content(tmp_path / "bundle") == content(bundle)


def test_what_was_deleted_there_and_is_still_listed_hinders_nobody(bundle: Path, home: Path, tmp_path: Path) -> None:
    """So the bytes of what a tag named each night are got back; the next night it is the same, and signed anew."""
    (tmp_path / "there").mkdir()
    with registries.real(tmp_path / "there") as one:
        registries.log_in(home / ".docker", one.host)
        access, place = RegistryAccess(one.ca_file), f"{one.host}/caches/app:v1"
        bundling.push(PushBundle(bundle, place, access), lambda *_: None)
        program = shutil.which("docker-registry") or ""
        config = tmp_path / "there/config.json"
        subprocess.run([program, "garbage-collect", "--delete-untagged", config], check=True, capture_output=True)
        anew = bundles.signed(tmp_path / "anew", str(bundle.parent / "key.key"))
        bundling.push(PushBundle(anew, place, access), lambda *_: None)
        assert bundling.pull(PullBundle(place, tmp_path / "bundle", access), lambda *_: None).signatures == 2
        assert content(tmp_path / "bundle") == content(anew)


def killed(work: Callable[[], object], draw: random.Random, longest: float) -> bool:
    """Do it in a process of its own, which is killed at some moment; give whether it had ended before."""
    child = forks.copy(work)
    time.sleep(draw.uniform(0, longest))
    return forks.kill(child)


def test_whoever_is_killed_leaves_the_old_state(
    registry: RealRegistry, bundle: Path, access: RegistryAccess, tmp_path: Path
) -> None:
    """At a few random moments each."""
    plain = bundles.tar(bundles.good())
    both = (bundle, bundles.forge(tmp_path / "other", bundles.packed(plain), bundles.facts(plain, made_by="x")))
    known = [content(one) for one in both]
    draw = random.Random(20)  # noqa: S311 - which moments
    place = f"{registry.host}/kills:v1"
    dest = tmp_path / "dest"

    def push(which: int, tag: str = "v1") -> None:
        bundling.push(PushBundle(both[which], f"{registry.host}/kills:{tag}", access), lambda *_: None)

    def pull() -> None:
        bundling.pull(PullBundle(place, dest, access), lambda *_: None)

    began = time.monotonic()
    push(0)
    longest = time.monotonic() - began
    for number in range(KILLS):
        killed(lambda number=number: push((number + 1) % 2, "v1"), draw, longest)  # type: ignore[misc]
        pull()
        assert content(dest) in known
        shutil.rmtree(dest)
    push(0)

    began = time.monotonic()
    pull()
    longest = time.monotonic() - began
    shutil.rmtree(dest)
    for _ in range(KILLS):
        killed(pull, draw, longest * 1.2)
        if dest.exists():
            assert content(dest) == known[0]
            shutil.rmtree(dest)
    pull()
    assert content(dest) == known[0]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["dest", "home", "other"]
