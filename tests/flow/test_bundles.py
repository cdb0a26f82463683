"""Bundles of what a real runtime wrote, by the command itself."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from xpucached.bundle import members
from xpucached.bundling.__main__ import carry_out
from xpucached.bundling.inspecting import check
from xpucached.domain.bundles import Compression, DiffBundles, DiffReport, ExportBundle, ExportReport, InspectBundle
from xpucached.errors import BadBundle

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tests.support.runtimes import Runtime
    from xpucached.domain.bundles import BundleOrder, BundleReport

CTL: Final = (sys.executable, "-m", "xpucached.cli")
KERNELS: Final = ("alpha", "beta", "gamma", "delta")


def ctl(*words: object, status: int = 0, **variables: str) -> str:
    """Run a command; give what it printed."""
    command = [*CTL, *map(str, words)]
    done = subprocess.run(command, env=os.environ | variables, capture_output=True, text=True, check=False)
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout


def report(*words: object, status: int = 0, **variables: str) -> Mapping[str, object]:
    found: Mapping[str, object] = json.loads(ctl("bundle", *words, "--json", status=status, **variables))
    return found["data"] if "data" in found else found["error"]  # type: ignore[return-value]


def compiled(runtime: Runtime, store: Path, *kernels: str, driver: Path | None = None) -> tuple[int, int]:
    """Let a real program use a store; give how many entries it found there, and how many it made."""
    variables = runtime.environment(store, driver=driver, trace=True)
    done = subprocess.run(runtime.program(*kernels), env=variables, capture_output=True, text=True, check=True)
    told = done.stdout + done.stderr
    return told.count("using cached device binary"), told.count("has been cached")


@pytest.fixture(scope="module")
def store(runtime: Callable[[str], Runtime], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a store that a real program filled."""
    place = tmp_path_factory.mktemp("bundles") / "store"
    hits, made = compiled(runtime("rt2025.2"), place, *KERNELS)
    assert (hits, made) == (0, len(KERNELS))
    return place


def done(order: BundleOrder) -> BundleReport:
    """Carry an order out in this process."""
    return carry_out(order, lambda *_: None)


def content(root: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file() and not path.name.endswith("_access_time.txt")
    }


# -- export, look, compare --------------------------------------------------------------------------------------------


@pytest.mark.runtime
def test_what_a_runtime_wrote_travels(store: Path, runtime: Callable[[str], Runtime], tmp_path: Path) -> None:
    driver = ("--driver-root", runtime("rt2025.2").root)
    whole = report("export", tmp_path / "a", "--store", store, *driver)
    view = whole["view"]
    assert isinstance(view, dict)
    assert [(one["facts"]["content"], one["facts"]["entries"]) for one in view["members"]] == [
        ("binaries", len(KERNELS)),
        ("recipes", len(KERNELS)),
    ]
    image = view["members"][0]["facts"]
    assert {one["name"] for one in image["compiler"]} >= {"libintelocl.so"}
    assert image["isa"].startswith("cpu:")
    # Nothing tells of this host.
    everything = b"".join(path.read_bytes() for path in (tmp_path / "a").rglob("*") if path.is_file())
    assert os.uname().nodename.encode() not in everything
    assert str(tmp_path).encode() not in everything

    # The same entries give the same digest, in a tar file, too; and gzip has the same content.
    place = runtime("rt2025.2").root
    again = done(ExportBundle(tmp_path / "b.tar", store, driver_root=place))
    assert isinstance(again, ExportReport)
    assert again.view.digest == view["digest"]
    done(ExportBundle(tmp_path / "c", store, driver_root=place, compression=Compression.GZIP))
    done(InspectBundle(tmp_path / "c", deep=True))
    assert done(DiffBundles((tmp_path / "a", tmp_path / "c"))) == DiffReport(())
    assert done(DiffBundles((tmp_path / "b.tar", tmp_path / "a"))) == DiffReport(())

    # One program more shows.
    more = tmp_path / "more"
    shutil.copytree(store, more)
    compiled(runtime("rt2025.2"), more, "epsilon")
    done(ExportBundle(tmp_path / "d", more, driver_root=place))
    changes = report("diff", tmp_path / "a", tmp_path / "d", status=1)["changes"]
    assert [(one["content"], one["added"], one["removed"]) for one in changes] == [  # type: ignore[attr-defined]
        ("binaries", 1, 0),
        ("recipes", 1, 0),
    ]

    # The image is the runtime's own tree.
    shown = ctl("bundle", "inspect", tmp_path / "a")
    assert "any driver" in shown
    assert image["target"]["device"] in shown


@pytest.mark.runtime
def test_every_bit_that_flips_is_noticed(store: Path, tmp_path: Path) -> None:
    done(ExportBundle(tmp_path / "a", store, recipes_only=True))
    draw = random.Random(7)  # noqa: S311 - which bits
    for path in sorted((tmp_path / "a/blobs/sha256").iterdir()):
        whole = path.read_bytes()
        for _ in range(40):
            place = draw.randrange(8 * len(whole))
            flipped = bytearray(whole)
            flipped[place // 8] ^= 1 << place % 8
            path.write_bytes(flipped)
            with pytest.raises(BadBundle):  # noqa: PT012 - opening may find it, or reading
                bundle = members.opened(tmp_path / "a")
                with bundle.layout:
                    check(bundle, lambda *_: None)
        path.write_bytes(whole)
    ctl("bundle", "verify", tmp_path / "a")
