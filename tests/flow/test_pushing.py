"""What a host compiled from recipes goes into a real registry, signed, and is taken from there as it is."""

from __future__ import annotations

import json
import os
import pwd
import re
import shlex
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING, Final, cast

import pytest

from tests import REPOSITORY
from tests.flow.test_bundles import KERNELS, compiled
from tests.flow.test_daemon import driven
from tests.support import registries
from tests.support.bundles import content
from tests.support.daemons import daemon
from xpucached.bundle import members
from xpucached.bundling.__main__ import carry_out
from xpucached.domain.bundles import BundleContent, ExportBundle, MakeKey, PullBundle, RegistryAccess
from xpucached.errors import RequestError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.support.daemons import Daemon
    from tests.support.registries import RealRegistry
    from tests.support.runtimes import Runtime
    from xpucached.domain.bundles import BundleOrder, BundleReport

CAME, RECIPES = KERNELS[:1], KERNELS[1:]
UNIT: Final = REPOSITORY / "systemd/user/xpucached-push.service"


def done(order: BundleOrder) -> BundleReport:
    return carry_out(order, lambda *_: None)


def ran(environ: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Run the line of the unit as a user's manager does."""
    (line,) = re.findall(r"^ExecStart=xpucachectl (.*)$", UNIT.read_text(encoding="utf-8"), re.MULTILINE)
    command = [sys.executable, "-m", "xpucached.cli", *shlex.split(line)]
    return subprocess.run(command, env=environ, capture_output=True, text=True, check=False)


def bundles(real: Runtime, folder: Path, place: Path) -> None:
    """Make one bundle with a program, and one with the recipes of others, signed by one key."""
    folder.mkdir()
    done(MakeKey(place / "release"))
    with pytest.MonkeyPatch.context() as there:
        there.setenv("OCL_ICD_FILENAMES", str(real.driver))
        there.setenv("LD_LIBRARY_PATH", str(real.lib))
        for name, kernels in (("programs", CAME), ("recipes", RECIPES)):
            assert compiled(real, place / name, *kernels) == (0, len(kernels))
            secret, only = str(place / "release.key"), name == "recipes"
            done(ExportBundle(folder / name, place / name, recipes_only=only, sign=secret))


def standing(host: Daemon) -> tuple[bool, bool, str]:
    """Return whether `status` and `doctor` call a push failed, whether a bundle is where it shall be, and where."""
    status = host.ask("status")
    pushed = cast("dict[str, str]", status["pushed"])
    failed = "push-failed" in str(status["problems"])
    assert ("(push-failed)" in host.ctl("doctor", check=None).stdout) is failed
    return failed, pushed["digest"].startswith("sha256:"), pushed["reference"]


def key_is_asked_for(key: Path, environ: dict[str, str]) -> None:
    """See that nothing is pushed without a key, nor with one that others can read; that one is there now."""
    told = ran(environ)
    assert (told.returncode, f"xpucachectl bundle keygen {key}" in told.stderr) == (66, True)
    done(MakeKey(key))
    key.with_suffix(".key").chmod(0o644)
    told = ran(environ)
    assert told.returncode != 0
    assert "can be read by others" in told.stderr


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[RealRegistry]:
    place = tmp_path / "registry"
    place.mkdir()
    with registries.real(place) as one:
        yield one


def test_what_was_made_here_is_known_to_the_catalog_alone(tmp_path: Path) -> None:
    bundle = tmp_path / "bundle"
    for order in (
        ExportBundle(bundle, tmp_path, made_here=True),
        ExportBundle(bundle, recipes_only=True, made_here=True),
        ExportBundle(bundle, driver_root=tmp_path, made_here=True),
    ):
        with pytest.raises(RequestError, match="what was made here"):
            done(order)
    assert not bundle.exists()


@pytest.mark.runtime
@pytest.mark.timeout(600)
def test_only_what_was_compiled_here_goes_out_once_and_says_nothing_of_the_host(
    runtime: Callable[[str], Runtime],
    registry: RealRegistry,
    home: Path,
    short_dir: Path,
    tmp_path: Path,
) -> None:
    pytest.importorskip("cryptography")
    real, folder = runtime("rt2025.2"), tmp_path / "folder"
    bundles(real, folder, tmp_path)
    config = home / ".config/xpucached"
    (config / "trust.d").mkdir(parents=True)
    shutil.copy(tmp_path / "release.pub", config / "trust.d")

    with daemon(home, short_dir) as host:
        user, node = pwd.getpwuid(os.geteuid()).pw_name, os.uname().nodename.casefold()
        place = f"{registry.host}/made/{user}:{node}"
        to = f"{registry.host}/made/{{user}}:{{host}}"
        driven(host, real, tmp_path / "driver", f"[bundles]\nfolder = '{folder}'\npush = '{to}'\n")
        host.start()
        host.until(lambda: len(host.rows("ls", "--origin", "rebuilt")) == len(RECIPES))
        host.until(lambda: len(host.rows("ls", "--origin", "imported")) == len(CAME))
        registries.log_in(home / ".docker", registry.host)
        environ = host.environment | {
            "SSL_CERT_FILE": str(registry.ca_file),
            "DOCKER_CONFIG": str(home / ".docker"),
        }
        key_is_asked_for(config / "push", environ)
        assert standing(host) == (True, False, place)
        (config / "push.key").chmod(0o600)

        told = ran(environ)
        assert (told.returncode, told.stderr) == (0, "")
        assert standing(host) == (False, True, place)
        kept = content(registry.storage)
        # The same again is not signed again, nor sent.
        told = ran(environ)
        assert (told.returncode, told.stderr) == (0, "")
        assert content(registry.storage) == kept

        with pytest.MonkeyPatch.context() as there:
            there.setenv("DOCKER_CONFIG", str(home / ".docker"))
            done(PullBundle(place, tmp_path / "pulled", RegistryAccess(registry.ca_file)))
        bundle = members.opened(tmp_path / "pulled")
        with bundle.layout:
            (member,) = bundle.members
            assert (member.facts.content, member.facts.entries) == (BundleContent.BINARIES, len(RECIPES))
            files = {name: one for _, some in bundle.leaves(member, lambda _: True) for name, one in some.items()}
        said = b"".join(content(tmp_path / "pulled").values()) + b"".join(files.values())
        # A name of a few letters is in any packed file by chance.
        for secret in (str(home), str(tmp_path), os.uname().nodename):
            assert len(secret) < 5 or secret.encode() not in said

        # What is pulled from there is no news to the host that made it.
        shutil.copy(config / "push.pub", config / "trust.d")
        back = json.loads(host.ctl("bundle", "import", str(tmp_path / "pulled"), "--json").stdout)["data"]
        assert (back["published"], back["present"]) == (0, len(RECIPES))
        assert len(host.rows("ls", "--origin", "rebuilt")) == len(RECIPES)
        told = ran(environ)
        assert (told.returncode, content(registry.storage)) == (0, kept)

        # Another user who trusts that key takes the programs as they are.
        taken = host.ctl("bundle", "import", str(tmp_path / "pulled"), "--into", str(tmp_path / "other"), "--json")
        report = json.loads(taken.stdout)["data"]
        assert (report["published"], report["rebuilt"]) == (len(RECIPES), 0)
        assert compiled(real, tmp_path / "other", *RECIPES) == (len(RECIPES), 0)
