"""Where accounts for registries are found, and with whom they are shared."""

from __future__ import annotations

import base64
import json
import os
from pathlib import Path

import pytest

from xpucached.errors import RegistryDenied
from xpucached.registry import accounts, reference
from xpucached.registry.accounts import Account

PLACE = reference.parse("registry.example.com:5000/caches/app:v1")


def auth(text: str) -> dict[str, str]:
    return {"auth": base64.b64encode(text.encode()).decode()}


def write(path: Path, **said: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(said), encoding="utf-8")
    return path


def helper(folder: Path, script: str, name: str = "test") -> str:
    folder.mkdir(exist_ok=True)
    path = folder / f"docker-credential-{name}"
    path.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    path.chmod(0o755)
    return str(folder)


def test_the_nearest_account_counts(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert accounts.account(PLACE, os.environ) is None
    host = "registry.example.com:5000"
    write(home / ".docker/config.json", auths={host: auth("docker:a:b"), f"{host}/caches": auth("near:c")})
    assert accounts.account(PLACE, os.environ) == Account("near", "c")
    other = reference.parse(f"{host}/other:v1")
    assert accounts.account(other, os.environ) == Account("docker", "a:b")
    assert accounts.account(reference.parse("example.com/app"), os.environ) is None
    write(home / ".config/containers/auth.json", auths={host: auth("podman:d")})
    assert accounts.account(PLACE, os.environ) == Account("podman", "d")
    write(tmp_path / "own/config.json", auths={f"https://{host}": {"identitytoken": "token"}})
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "own"))
    assert accounts.account(PLACE, os.environ) == Account("", "token", is_token=True)
    hub = reference.parse("docker.io/library/app")
    assert (hub.server, hub.helper_name) == ("registry-1.docker.io", "https://index.docker.io/v1/")


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"[", "cannot be read"),
        (b"[]", "cannot be read"),
        (b'{"auths":{"registry.example.com:5000":{"auth":"%"}}}', "no account"),
        ('{"auths":{"registry.example.com:5000":{"auth":"é"}}}'.encode(), "no account"),
        (b'{"auths":{"registry.example.com:5000":{"auth":"eA=="}}}', "no account"),
        (b'{"auths":{"registry.example.com:5000":{"auth":"eDp5Cg=="}}}', "characters"),
        (b'{"credsStore":"../../evil"}', "not in PATH"),
        (b'{"credsStore":"missing"}', "not in PATH"),
    ],
)
def test_what_cannot_be_an_account_is_said(home: Path, content: bytes, why: str) -> None:
    (home / ".docker").mkdir()
    (home / ".docker/config.json").write_bytes(content)
    with pytest.raises(RegistryDenied, match=why):
        accounts.account(PLACE, os.environ)


@pytest.mark.parametrize("mode", [0o602, 0o620, 0o666])
def test_a_file_that_others_can_write_names_no_program(home: Path, mode: int) -> None:
    path = write(home / ".docker/config.json", credsStore="test")
    path.chmod(mode)
    with pytest.raises(RegistryDenied, match="others may write"):
        accounts.account(PLACE, os.environ)
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(RegistryDenied, match="no file"):
        accounts.account(PLACE, os.environ)


@pytest.mark.flow
def test_a_helper_is_asked_and_what_it_says_is_bounded(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(home / ".docker/config.json", credHelpers={PLACE.host: "test"}, auths={PLACE.host: auth("file:word")})
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    monkeypatch.setenv("GNUPGHOME", "/gnupg")
    monkeypatch.setenv("LD_PRELOAD", "/none.so")
    where = tmp_path / "bin"
    helper(where, 'read at; echo "{\\"Username\\":\\"$1\\",\\"Secret\\":\\"$at $GNUPGHOME$LD_PRELOAD\\"}"')
    assert accounts.account(PLACE, os.environ) == Account("get", f"{PLACE.host} /gnupg")
    helper(where, 'echo "{\\"Username\\":\\"<token>\\",\\"Secret\\":\\"x\\"}"')
    assert accounts.account(PLACE, os.environ) == Account("", "x", is_token=True)
    # It has none: then what stands in the file.
    helper(where, "echo credentials not found in native keychain; exit 1")
    assert accounts.account(PLACE, os.environ) == Account("file", "word")
    for script, why in (
        ("echo locked; exit 1", "ended with status 1"),
        ("exec cat /dev/zero", "printed without end"),
        ("echo '{}'", "cannot be read"),
        ("echo x; kill -9 $$", "ended by SIGKILL"),
    ):
        helper(where, script)
        with pytest.raises(RegistryDenied, match=why):
            accounts.account(PLACE, os.environ)


def test_who_may_hear_the_password_of_a_registry() -> None:
    for place, host, may in (
        ("registry.gitlab.com/a", "gitlab.com", True),
        ("registry.gitlab.com/a", "registry.gitlab.com", True),
        ("registry.gitlab.com/a", "com", False),
        ("registry.gitlab.com/a", "evilgitlab.com", False),
        ("registry.gitlab.com/a", "auth.gitlab.com", False),
        ("gitlab.com/a", "registry.gitlab.com", False),
        ("docker.io/a/b", "auth.docker.io", True),
        ("registry.example.com/a", "auth.docker.io", False),
    ):
        assert reference.parse(place).trusts_for_tokens(host) is may, (place, host)
