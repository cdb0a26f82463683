"""Bundles that a host is told of: fetched by a program of their own, taken in by the daemon before it compiles."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import shutil
import ssl
import subprocess
import sys
from contextlib import closing
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest

from tests.flow.test_bundles import KERNELS, compiled, content, hindered
from tests.flow.test_daemon import driven
from tests.support import bundles, registries
from tests.support.builders import SyclStore
from tests.support.daemons import daemon
from xpucached.bundle import trust
from xpucached.bundling.__main__ import carry_out
from xpucached.bundling.merging import merge
from xpucached.bundling.registries import push
from xpucached.catalog import Catalog
from xpucached.catalog.builds import record_import
from xpucached.catalog.entries import all_entries
from xpucached.domain.bundles import (
    BundleSource,
    ExportBundle,
    ExportReport,
    FetchBundles,
    FetchReport,
    MadeEntry,
    MakeKey,
    MergeBundles,
    PushBundle,
    RegistryAccess,
)
from xpucached.errors import RequestError, RunFailed
from xpucached.registry import retrying

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.support.daemons import Daemon
    from tests.support.registries import Request
    from tests.support.runtimes import Runtime


def fetched(status: int = 0) -> FetchReport:
    report = carry_out(FetchBundles(), lambda *_: None)
    assert isinstance(report, FetchReport)
    assert any(one.error for one in report.bundles) is bool(status)
    return report


def test_what_the_configuration_names_lies_there(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("cryptography")
    monkeypatch.setattr(retrying, "_FIRST_PAUSE", 0.001)
    trust.keygen(tmp_path / "key")
    first = bundles.signed(tmp_path / "first", str(tmp_path / "key.key"))
    plain = bundles.tar(bundles.good())
    unsigned = bundles.forge(tmp_path / "unsigned", bundles.packed(plain), bundles.facts(plain, made_by="x"))
    other = tmp_path / "other"
    twin = bundles.forge(tmp_path / "twin", bundles.packed(plain), bundles.facts(plain, made_by="y"))
    merge(MergeBundles((twin,), other, sign=str(tmp_path / "key.key")), lambda *_: None)
    keys = home / ".config/xpucached/trust.d"
    keys.mkdir(parents=True)
    shutil.copy(tmp_path / "key.pub", keys)
    folder, config = tmp_path / "folder", home / ".config/xpucached/xpucached.toml"
    config.write_text("", encoding="utf-8")
    with pytest.raises(RequestError, match="names no bundle"):
        fetched()
    with registries.small() as registry:
        registry.account = False
        places = [f"{registry.host}/{name}" for name in ("a:v1", "b:v2")]
        for place in places:
            push(PushBundle(first, place, RegistryAccess(plain_http=True)), lambda *_: None)

        def write(*names: str) -> None:
            config.write_text(f"[bundles]\npull = {json.dumps(names)}\nfolder = '{folder}'\n", encoding="utf-8")

        write(*places)
        there = [one.path for one in fetched().bundles]
        assert all(path is not None and content(path) == content(first) for path in there)
        assert len({*folder.iterdir()} & {*there}) == 2
        assert not any(one.new for one in fetched().bundles)

        # What a power cut left of it is fetched anew.
        assert there[0] is not None
        for gone in (False, True):
            (there[0] / "index.json").unlink() if gone else (there[0] / "index.json").write_bytes(b"")
            assert [one.new for one in fetched().bundles] == [True, False]
            assert content(there[0]) == content(first)

        # A tag that was moved brings the other one; what cannot be had now stays.
        push(PushBundle(other, places[0], RegistryAccess(plain_http=True)), lambda *_: None)

        def away(request: Request) -> bool:
            return "/b/" in request.path and request.say(500)

        registry.instead = away
        now = fetched(status=1)
        assert [one.new for one in now.bundles] == [True, False]
        assert "answered 500" in now.bundles[1].error
        assert sorted(map(str, folder.iterdir())) == sorted(map(str, (now.bundles[0].path, there[1])))
        assert now.bundles[0].path is not None
        assert content(now.bundles[0].path) == content(other)

        # What nobody signs is not fetched, and what was there stays.
        registry.instead = None
        push(PushBundle(unsigned, places[0], RegistryAccess(plain_http=True)), lambda *_: None)
        assert "is not signed" in fetched(status=1).bundles[0].error
        assert content(now.bundles[0].path) == content(other)

        # What is not named any more goes.
        registry.instead = None
        write(places[1])
        command = [sys.executable, "-m", "xpucached.cli", "--user", "bundle", "fetch", "--json"]
        done = subprocess.run(command, capture_output=True, text=True, check=True, env=os.environ)
        (one,) = json.loads(done.stdout)["data"]["bundles"]
        assert [str(path) for path in folder.iterdir()] == [one["path"]] == [str(there[1])]


def test_only_what_was_fetched_goes(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retrying, "_FIRST_PAUSE", 0.001)
    ours = "0123456789ab-0123456789ab"
    names = ("by-hand", ".by-hand", "0123456789ab-app", ours, f".{ours}.pulling")
    for name in names:
        (tmp_path / "folder" / name / "blobs").mkdir(parents=True)
    (tmp_path / "folder" / names[-1]).chmod(0o700)
    text = f"[bundles]\npull = ['localhost:1/app:v1']\nfolder = '{tmp_path / 'folder'}'\n"
    config = home / ".config/xpucached/xpucached.toml"
    config.parent.mkdir(parents=True, exist_ok=True)
    config.write_text(text, encoding="utf-8")
    fetched(status=1)
    assert {path.name for path in (tmp_path / "folder").iterdir()} == {*names[:3]}


def test_who_fetches_and_wants_names_alone_hears_why_there_are_none(home: Path, tmp_path: Path) -> None:
    """As the unit does at boot: the reason has to stand in the journal."""
    _, own, key = registries.certificate(tmp_path)
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(own, key)
    config = home / ".config/xpucached/xpucached.toml"
    config.parent.mkdir(parents=True, exist_ok=True)
    with registries.small("localhost", tls=tls) as registry:
        place = f"{registry.host}/app:v1"
        config.write_text(f"[bundles]\npull = ['{place}']\nfolder = '{tmp_path / 'folder'}'\n", encoding="utf-8")
        command = [sys.executable, "-m", "xpucached.cli", "--user", "--quiet", "bundle", "fetch"]
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ)
    assert (done.returncode, done.stdout.strip()) == (RunFailed.exit, "")
    assert done.stderr.startswith(f"xpucachectl: {place}: the certificate of localhost is not trusted")


@pytest.mark.runtime
@pytest.mark.timeout(600)
def test_a_daemon_takes_what_lies_there_before_it_compiles(
    runtime: Callable[[str], Runtime], home: Path, short_dir: Path, tmp_path: Path
) -> None:
    pytest.importorskip("cryptography")
    real, folder = runtime("rt2025.2"), tmp_path / "folder"
    store = tmp_path / "store"
    assert compiled(real, store, *KERNELS) == (0, len(KERNELS))
    folder.mkdir()
    with pytest.MonkeyPatch.context() as there:
        there.setenv("OCL_ICD_FILENAMES", str(real.driver))
        there.setenv("LD_LIBRARY_PATH", str(real.lib))
        carry_out(MakeKey(tmp_path / "key"), lambda *_: None)
        carry_out(ExportBundle(folder / "signed", store, sign=str(tmp_path / "key.key")), lambda *_: None)
        carry_out(ExportBundle(folder / "unsigned", store), lambda *_: None)
    shutil.copytree(folder / "unsigned", folder / "bad")
    (folder / "bad/index.json").write_bytes(b"{}")
    keys = home / ".config/xpucached/trust.d"
    keys.mkdir(parents=True)

    with daemon(home, short_dir) as host:
        # Each look is asked for.
        driven(host, real, tmp_path / "driver", f"[bundles]\nfolder = '{folder}'\n[watch]\nmode = 'polling'\n")
        host.start()
        # Of whom nobody trusts nothing is taken, not even recipes; what cannot be read is told.
        host.until(lambda: f"{folder}/bad: " in str(host.ask("status")["problems"]))
        assert host.rows("ls") == []

        shutil.rmtree(folder / "bad")
        # What came before the disk refused one of them is noted as the bundle's.
        managed = home / ".cache/xpucached/sycl"
        hindrance = hindered(folder / "signed", managed)
        shutil.copy(tmp_path / "key.pub", keys)
        host.ctl("scan")
        host.until(lambda: f"{folder}/signed: " in str(host.ask("status")["problems"]))
        some = len(list(managed.rglob("*.bin")))
        assert 0 < some < len(KERNELS)
        host.until(lambda: len(host.rows("ls", "--origin", "imported")) == some)
        assert len(host.rows("ls")) == some

        hindrance.unlink()
        # Whom we trust is another now, so it is not waited until that is tried again.
        (keys / "revoked").write_text("")
        host.ctl("scan")
        host.until(lambda: len(host.rows("ls", "--origin", "imported")) == len(KERNELS))
        assert content(managed).items() >= content(store).items()
        assert compiled(real, managed, *KERNELS) == (len(KERNELS), 0)
        told = next(event for event in host.rows("events") if event["topic"] == "bundle-taken")
        assert (told["fields"]["published"], told["fields"]["rebuilt"]) == (str(len(KERNELS) - some), "0")  # type: ignore[index]
        host.until(lambda: "bundles" not in str(host.ask("status")["problems"]))
        _revoked(host, keys, str(told["fields"]["bundle"]))  # type: ignore[index]
        # What programs compile anew is their own, though it is the same.
        assert compiled(real, managed, *KERNELS) == (0, len(KERNELS))
        host.ctl("scan")
        host.ctl("verify")
        assert len(host.rows("ls")) == len(KERNELS)


@pytest.mark.runtime
def test_what_one_imports_is_noted_by_the_daemon_of_one_s_own_where_the_host_s_would_be_asked(
    runtime: Callable[[str], Runtime], home: Path, short_dir: Path, tmp_path: Path
) -> None:
    """As root's is in a container: what is not noted could not be revoked."""
    real, store = runtime("rt2025.2"), tmp_path / "store"
    assert compiled(real, store, *KERNELS) == (0, len(KERNELS))
    with pytest.MonkeyPatch.context() as there:
        there.setenv("OCL_ICD_FILENAMES", str(real.driver))
        there.setenv("LD_LIBRARY_PATH", str(real.lib))
        made = carry_out(ExportBundle(tmp_path / "bundle", store, recipes_only=True), lambda *_: None)
    assert isinstance(made, ExportReport)
    with daemon(home, short_dir) as host:
        driven(host, real, tmp_path / "driver", "[watch]\nmode = 'polling'\n")
        host.start()
        done = host.ctl("--system", "bundle", "import", str(tmp_path / "bundle"))
        assert "no daemon noted" not in done.stderr
        host.until(lambda: len(host.rows("ls", "--bundle", made.view.digest)) == len(KERNELS))
        host.end()
        shutil.rmtree(home / ".cache/xpucached/sycl")
        done = host.ctl("--system", "bundle", "import", str(tmp_path / "bundle"))
        assert "xpucachectl: no daemon noted where these entries came from: no daemon answers" in done.stderr


def test_what_is_revoked_goes_as_soon_as_that_is_written(home: Path, short_dir: Path) -> None:
    digest, keys = f"sha256:{'1' * 64}", home / ".config/xpucached/trust.d"
    store = SyclStore(home / ".cache/xpucached/sycl")
    for number in range(3):
        store.add(f"kernel{number}")
    with daemon(home, short_dir) as host:
        host.start()
        host.end()
        with closing(Catalog.open(host.state / "catalog.sqlite")) as catalog:
            came = [
                MadeEntry(one.id.store.kind, one.id.store.root, one.id.key, one.digest or "", "", 0.0, 0)
                for one in sorted((one.entry for one in catalog.read(all_entries)), key=lambda one: one.id)[:2]
            ]
            catalog.write(record_import, came, digest, BundleSource(), datetime.now(UTC))
        keys.mkdir(parents=True)
        host.start()
        assert len(host.rows("ls")) == 3
        # No look is asked for, and the next one by itself is hours away.
        (keys / "revoked").write_text(f"{digest}\n")
        host.until(lambda: len(host.rows("ls")) == 1)
        host.until(lambda: [one["reason"] for one in host.rows("trash", "list")] == ["revoked"] * 2)
        host.until(lambda: "revo" not in str(host.ask("status")["problems"]))


def _revoked(host: Daemon, keys: Path, digest: str) -> None:
    """See what came with a bundle go when that is revoked, and when its key is."""
    # A file of which nobody knows what was meant is told.
    (keys / "revoked").write_text("release\n")
    assert "(revocations-unknown)" in host.ctl("doctor", check=1).stdout
    # What is revoked is told with what to do, and taken out by the next look, young as it is.
    (keys / "revoked").write_text(f"{digest}  # it was a mistake\n")
    found = " ".join(host.ctl("verify", check=1).stdout.split())
    assert f"{len(KERNELS)} entries came with what is revoked here" in found
    assert "evict --reason revoked" in found
    planned = host.ask("evict", "--dry-run")["report"]["plan"]["evict"]  # type: ignore[index]
    assert [one["reason"] for one in planned] == ["revoked"] * len(KERNELS)
    host.ctl("scan")
    host.until(lambda: host.rows("ls") == [])
    trash = {(one["reason"], digest in str(one["detail"])) for one in host.rows("trash", "list")}
    assert trash == {("revoked", True)}
    host.until(lambda: "revo" not in str(host.ask("status")["problems"]))
    host.ctl("verify")
    # Who takes it back from there meets the same.
    host.ctl("trash", "restore", "--all")
    host.ctl("scan")
    host.until(lambda: host.rows("ls") == [])

    # Where it is not revoked any more it is taken in again; the key is revoked by a digest, too.
    (keys / "revoked").unlink()
    host.ctl("scan")
    host.until(lambda: len(host.rows("ls", "--bundle", digest)) == len(KERNELS))
    pem = (keys / "key.pub").read_text().splitlines()[1:-1]
    (keys / "revoked").write_text(f"sha256:{hashlib.sha256(base64.b64decode(''.join(pem))).hexdigest()}\n")
    host.ctl("scan")
    host.until(lambda: host.rows("ls") == [])
    host.until(lambda: "revo" not in str(host.ask("status")["problems"]))
