"""Bundles of what a real runtime wrote, by the command itself."""

from __future__ import annotations

import json
import os
import random
import shutil
import struct
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from tests import REPOSITORY
from tests.support import bundles
from tests.support.builders import native
from xpucached.bundle import members
from xpucached.bundling.__main__ import carry_out
from xpucached.bundling.inspecting import check, programs
from xpucached.cli.bundles import asked
from xpucached.domain.bundles import (
    Binaries,
    BundleReplayReport,
    Compression,
    DiffBundles,
    DiffReport,
    ExportBundle,
    ExportReport,
    ImportBundle,
    ImportReport,
    InspectBundle,
    KeyReport,
    MakeKey,
    MergeBundles,
    ReplayBundle,
)
from xpucached.domain.imports import EntriesCame, together
from xpucached.errors import BadBundle, Conflict, DiskError, Unsigned, XpucachedError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tests.support.runtimes import Runtime, SimulatedGpu
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


def hindered(source: Path, store: Path) -> Path:
    """Let the disk refuse the last program of a bundle a place in a store; give what is to go for it to be taken."""
    opened = members.opened(source)
    with opened.layout:
        *_, (_, _, _, leaf) = programs(opened, next(one for one in opened.members if one.facts.target), store)
    place = (store / leaf).parent.parent
    place.parent.mkdir(parents=True, exist_ok=True)
    place.symlink_to("nowhere")
    return place


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
    # A name of a few letters is in any packed file by chance.
    assert len(os.uname().nodename) < 5 or os.uname().nodename.encode() not in everything
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


# -- to another user, and to another driver ---------------------------------------------------------------------------


def turns(place: Path) -> list[tuple[int, int]]:
    """Take a bundle in by turns that have no time; give how many each published, and compiled."""
    found: list[tuple[int, int]] = []
    following: int | None = 0
    while following is not None:
        part = done(ImportBundle(place / "bundle", place / "turns", seconds=0.0, first=following))
        assert isinstance(part, ImportReport)
        found.append((part.published, part.rebuilt))
        following = part.next
    return found


@pytest.mark.runtime
def test_what_is_trusted_is_taken_in_and_all_else_is_compiled_here(
    store: Path, runtime: Callable[[str], Runtime], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("cryptography")
    first, later = runtime("rt2025.2"), runtime("drv2025.3")
    monkeypatch.setenv("OCL_ICD_FILENAMES", str(first.driver))
    monkeypatch.setenv("LD_LIBRARY_PATH", str(first.lib))
    key = done(MakeKey(tmp_path / "key"))
    assert isinstance(key, KeyReport)
    done(ExportBundle(tmp_path / "bundle", store, sign=str(key.secret)))

    # Nobody here trusts the key: the same programs come about, but are compiled here.
    with pytest.raises(Unsigned, match="not trusted"):
        done(ImportBundle(tmp_path / "bundle", tmp_path / "none", Binaries.REQUIRE))
    assert not (tmp_path / "none").exists()
    alone = done(ImportBundle(tmp_path / "bundle", tmp_path / "none", unattended=True))
    assert isinstance(alone, ImportReport)
    assert (alone.published, alone.rebuilt, sum(alone.skipped.values())) == (0, 0, len(KERNELS))
    strange = done(ImportBundle(tmp_path / "bundle", tmp_path / "strange"))
    assert isinstance(strange, ImportReport)
    assert (strange.published, strange.rebuilt, len(strange.failures)) == (0, len(KERNELS), 0)
    assert content(tmp_path / "strange") == content(store)

    # With the key they are taken in as they are, once.
    trusted = Path(os.environ["XDG_CONFIG_HOME"]) / "xpucached/trust.d"
    trusted.mkdir(parents=True)
    shutil.copy(key.public, trusted)
    told = report("import", tmp_path / "bundle", "--into", tmp_path / "trusted", "--binaries=require")
    assert (told["published"], told["rebuilt"]) == (len(KERNELS), 0)
    assert told["view"]["signer"] == "key"  # type: ignore[index]
    assert content(tmp_path / "trusted") == content(store)
    again = done(ImportBundle(tmp_path / "bundle", tmp_path / "trusted"))
    assert isinstance(again, ImportReport)
    assert (again.published, again.rebuilt, again.present) == (0, 0, len(KERNELS))
    for name in ("strange", "trusted"):
        assert compiled(first, tmp_path / name, *KERNELS) == (len(KERNELS), 0)

    # What came before the disk refused one of them is told all the same.
    hindered(tmp_path / "bundle", tmp_path / "hindered")
    came: list[EntriesCame] = []
    coming: list[EntriesCame] = []
    order = ImportBundle(tmp_path / "bundle", tmp_path / "hindered")
    with pytest.raises(XpucachedError, match=r"directory|symbolic links"):
        asked(order, quiet=True, came=came, coming=coming.append)
    there = [str(path.parent) for path in (tmp_path / "hindered").rglob("*.bin")]
    assert there
    assert sorted(str(each.store / each.key.rpartition("/")[0]) for one in came for each in one.made) == sorted(there)
    # Whoever is killed has said before what may be there.
    assert {each.key for one in coming for each in one.made} > {each.key for one in came for each in one.made}

    # In turns that have no time one program of those that a key has signed is published after the other.
    assert [made for made in turns(tmp_path) if any(made)] == [(1, 0)] * len(KERNELS)
    assert content(tmp_path / "turns") == content(store)
    shutil.rmtree(tmp_path / "turns")

    # Another driver takes no program, whoever signed it.
    monkeypatch.setenv("OCL_ICD_FILENAMES", str(later.driver))
    monkeypatch.setenv("LD_LIBRARY_PATH", str(later.lib))
    other = done(ImportBundle(tmp_path / "bundle", tmp_path / "other"))
    assert isinstance(other, ImportReport)
    assert (other.published, other.rebuilt) == (0, len(KERNELS))
    assert [one.why for one in other.images] == ["the driver here is another one"]
    assert compiled(first, tmp_path / "other", *KERNELS, driver=later.driver) == (len(KERNELS), 0)

    # In turns that have no time, each of which sees to one recipe, the same comes about.
    assert turns(tmp_path) == [(0, 1)] * len(KERNELS)
    assert content(tmp_path / "turns") == content(tmp_path / "other")


@pytest.mark.runtime
def test_without_a_daemon_a_network_and_variables_shards_make_what_the_runtime_does(
    store: Path, runtime: Callable[[str], Runtime], tmp_path: Path
) -> None:
    root = runtime("rt2025.2").root
    done(ExportBundle(tmp_path / "bundle", store, driver_root=root))
    done(ExportBundle(tmp_path / "recipes", store, recipes_only=True))
    counts = []
    for index in range(2):
        order = ReplayBundle(tmp_path / "recipes", tmp_path / f"store{index}", (index, 2), driver_root=root)
        came: list[EntriesCame] = []
        made = carry_out(order, lambda *_: None, came.append)
        assert isinstance(made, BundleReplayReport)
        counts.append(made.rebuilt)
        # Of whom the recipes are is told before each is there, and when it is.
        assert [len(one.made) for one in together(came)] == [made.rebuilt] * 2
        assert {one.source.digests for one in came} == {came[0].source.digests} != {()}
        assert {one.bundle for one in came} < {*came[0].source.digests}
        done(ExportBundle(tmp_path / f"shard{index}", tmp_path / f"store{index}", driver_root=root))
    assert sum(counts) == len(KERNELS)
    assert all(counts)
    whole = done(MergeBundles((tmp_path / "shard0", tmp_path / "shard1"), tmp_path / "merged"))
    assert done(DiffBundles((tmp_path / "merged", tmp_path / "bundle"))) == DiffReport(())
    assert isinstance(whole, ExportReport)
    assert whole.view.digest == members.opened(tmp_path / "bundle").view.digest

    # As in the build of an image: no network, no variable, no home.
    command = [*CTL, "replay", "--bundle", str(tmp_path / "recipes"), "--driver-root", str(root)]
    alone = ["unshare", "-rn", "env", "-i", f"PATH={os.environ['PATH']}", *command, "--into", str(tmp_path / "baked")]
    if subprocess.run([*alone[:2], "true"], capture_output=True, check=False).returncode:
        pytest.skip("this user may make no namespaces (unshare -rn)")
    subprocess.run(alone, check=True, capture_output=True, cwd=REPOSITORY)
    assert content(tmp_path / "baked") == content(store)

    # What two hold differently is refused.
    leaf = next((tmp_path / "store0").glob("[0-9]*/*/*/*"))
    program = bytearray((leaf / "0.bin").read_bytes())
    program[16 + 64 + 8] ^= 1
    (leaf / "0.bin").write_bytes(program)
    done(ExportBundle(tmp_path / "spoilt", tmp_path / "store0", driver_root=root))
    with pytest.raises(Conflict, match="different programs under one name"):
        done(MergeBundles((tmp_path / "shard0", tmp_path / "spoilt"), tmp_path / "never"))
    assert not (tmp_path / "never").exists()


@pytest.mark.runtime
@pytest.mark.timeout(600)
def test_an_image_is_baked_for_a_gpu_that_is_not_there(gpu: SimulatedGpu, tmp_path: Path) -> None:
    created, _ = gpu.run("bmg-g21", "1x5x8", tmp_path / "theirs", tmp_path / "neo")
    done(ExportBundle(tmp_path / "bundle", tmp_path / "theirs", recipes_only=True))
    made = done(ReplayBundle(tmp_path / "bundle", tmp_path / "ours", driver_root=gpu.root, device="bmg-g21"))
    assert isinstance(made, BundleReplayReport)
    assert (made.rebuilt, made.failures) == (len(created), ())
    assert content(tmp_path / "ours") == content(tmp_path / "theirs")


@pytest.mark.runtime
def test_programs_find_what_a_read_only_store_has_and_write_above_it(
    store: Path, runtime: Callable[[str], Runtime], tmp_path: Path
) -> None:
    for name in ("upper", "work", "both"):
        (tmp_path / name).mkdir()
    layers = f"lowerdir={store},upperdir={tmp_path}/upper,workdir={tmp_path}/work"
    script = f'mount -t overlay overlay -o "{layers}" {tmp_path}/both && exec "$@"'
    inside = ["/usr/bin/unshare", "-rm", "/bin/sh", "-c", script, "sh"]
    if subprocess.run([*inside, "true"], capture_output=True, check=False).returncode:
        pytest.skip("this user may mount no overlay (unshare -rm)")
    real, before = runtime("rt2025.2"), content(store)
    variables = real.environment(tmp_path / "both", trace=True)
    words = [*inside, *real.program(*KERNELS, "above")]
    done_ = subprocess.run(words, env=variables, capture_output=True, text=True, check=True)
    told = done_.stdout + done_.stderr
    assert (told.count("using cached device binary"), told.count("has been cached")) == (len(KERNELS), 1)
    assert content(store) == before
    assert len(list((tmp_path / "upper").glob("*/*/*/*/0.bin"))) == 1


def test_who_finds_no_room_hears_where_to_make_some(home: Path, tmp_path: Path) -> None:
    for number in range(40):
        path, _, source = bundles.leaf(f"_ZTS{number}")
        leaf = tmp_path / "store" / path
        leaf.mkdir(parents=True)
        program = native(3000) + os.urandom(3000)
        (leaf / "0.bin").write_bytes(struct.pack("<QQ", 1, len(program)) + program)
        (leaf / "0.src").write_bytes(source)
    command = [*CTL, "bundle", "export", str(tmp_path / "bundle"), "--store", str(tmp_path / "store")]
    # What a file may have: a disk that is full cannot be had everywhere.
    limited = ["/bin/sh", "-c", 'ulimit -f 50; trap "" XFSZ; exec "$@"', "sh", *command]
    done = subprocess.run(limited, env=os.environ | {"HOME": str(home)}, capture_output=True, text=True, check=False)
    assert done.returncode == DiskError.exit
    said, hint = done.stderr.strip().splitlines()[-2:]
    assert said == "xpucachectl: what is made does not find room: File too large"
    assert hint == "hint: make room where it goes, and where it lies meanwhile: TMPDIR, or /tmp"
    assert not (tmp_path / "bundle").exists()


@pytest.mark.parametrize("room", ["daemon.user_daemon", "daemon.host_daemon", "cli.program", "watchd.__main__"])
def test_nobody_else_loads_what_only_bundles_need(room: str) -> None:
    heavy = (
        "cryptography",
        "distributed",
        "backports",
        "compression.zstd",
        "xpucached.bundling",
        "xpucached.bundle.",
        "xpucached.registry",
    )
    # What is revoked every daemon asks for, and that takes no library.
    found = f"{{one for one in sys.modules if one.startswith({heavy})}} - {{'xpucached.bundle.revocations'}}"
    code = f"import sys, xpucached.{room}; print(sorted({found}))"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=REPOSITORY)

    assert told.stdout == "[]\n"


@pytest.mark.parametrize("order", ["fleet", "inspecting", "importing"])
def test_an_order_loads_only_what_it_needs(order: str) -> None:
    heavy = ("sqlalchemy", "cryptography", "distributed", "rich", "starlette")
    code = f"""
import sys
import xpucached.bundling.__main__
before = "xpucached.kinds.table" in sys.modules
import xpucached.bundling.{order}
print([one for one in sys.modules if one.startswith({heavy})], before)
"""
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=REPOSITORY)

    assert told.stdout == "[] False\n"
