"""Directories of models where other compilers cache: what they hold is told, and no more than they go with a model."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import tempfile
import threading
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest
from msgspec.structs import replace

from tests import INSTANCE
from tests.support import api_stub, catalogs
from tests.support.builders import SyclStore
from xpucached.api.requests import AddModel, GetModel, ListStores, RemoveModel
from xpucached.catalog.preselect import store_subtotals
from xpucached.domain.models import RemovedModel
from xpucached.domain.names import ModelName
from xpucached.domain.plans import DiskSpace
from xpucached.domain.reports import EvictionReport
from xpucached.domain.stores import ModelCache, StoreState
from xpucached.domain.workloads import RunSpec
from xpucached.host import directory_users
from xpucached.kinds import model_caches, removal
from xpucached.processes.supervised import ProcessStarter
from xpucached.render import caches
from xpucached.render.text import TextStyle
from xpucached.service import Service
from xpucached.service.context import Context
from xpucached.service.events import Events
from xpucached.service.handlers import Handlers
from xpucached.settings import loading

if TYPE_CHECKING:
    from collections.abc import Iterator

NAME: Final = ModelName("net")


class Owner:
    """A service, and who registers models with it and asks what becomes of their directories."""

    def __init__(self, context: Context, home: Path) -> None:
        self.service = Service(context, ProcessStarter({}, INSTANCE))
        self.context = context
        self.home = home
        self.models = home / ".cache" / "xpucached" / "models"

    def add(self, name: str, *caches: Path, directory: Path = Path("/"), **variables: str) -> None:
        spec = RunSpec(caches=caches)
        request = AddModel(
            name=ModelName(name), command=("/bin/true",), directory=directory, exercise=spec, variables=variables
        )
        asyncio.run(self.service.models.add(request))

    def remove(self, name: str, *, caches: bool = False) -> dict[str, str]:
        """Give what became of each directory, by its name: why it stays, or nothing."""
        answer = asyncio.run(self.service.models.remove(ModelName(name), caches=caches))
        assert isinstance(answer, RemovedModel)
        return {one.path.name: one.stays for one in answer.caches}

    def told(self) -> dict[str, ModelCache]:
        """Give what is told of each directory among the stores."""
        answer = asyncio.run(Handlers(self.service).answer(ListStores()))
        assert isinstance(answer, tuple)
        return {one.cache.path.name: one.cache for one in answer if one.cache is not None}

    def restore(self) -> list[str]:
        """Bring back all that is in the trash; give what is said of each."""
        items = asyncio.run(self.service.trash.all())

        async def bring() -> list[str]:
            report = await self.service.trash.restoring([one.ref for one in items])(_Handle())  # type: ignore[arg-type]
            return [one.detail for one in report.restored]

        return asyncio.run(bring())


class _Handle:
    def progress(self, *_: object) -> None:
        """Tell nobody."""


def fill(place: Path, files: int = 1) -> Path:
    place.mkdir(parents=True)
    for number in range(files):
        (place / f"{number}.so").write_bytes(b"x" * 5000)
    return place


@pytest.fixture
def owner(tmp_path: Path) -> Iterator[Owner]:
    home = tmp_path / "home"
    home.mkdir(exist_ok=True)
    # What other programs of this user's cache in counts for the limits, too, and may go.
    places = {"HOME": str(home), "XDG_RUNTIME_DIR": str(tmp_path), "XPUCACHED_STORES_FOUND": "false"}
    config = loading.load(None, user=True, environ=places)
    config.paths.state.mkdir(parents=True)
    with contextlib.closing(catalogs.fresh(tmp_path / "catalog.sqlite")) as catalog:
        yield Owner(Context(config, catalog, {}), home)


def test_each_directory_is_told_of_with_whose_it_is(owner: Owner) -> None:
    named, led = fill(owner.home / "named", 2), fill(owner.home / "led", 3)
    owner.add(NAME, named, owner.home / "missing", TRITON_CACHE_DIR=str(led))
    owner.add("other")
    fill(owner.models / NAME / "inductor", 4)
    fill(owner.models / "former" / "triton")
    told = owner.told()
    assert {name: (one.model, one.named, one.files, one.ours, one.registered) for name, one in told.items()} == {
        "named": (NAME, "--cache", 2, False, True),
        "missing": (NAME, "--cache", 0, False, True),
        "led": (NAME, "TRITON_CACHE_DIR", 3, False, True),
        "net": (NAME, "", 4, True, True),
        "former": ("former", "", 1, True, False),
    }
    assert (told["missing"].state, told["net"].state) == (StoreState.MISSING, StoreState.OK)
    assert told["net"].allocated >= 4 * 5000
    assert told["net"].used is not None
    status = asyncio.run(Handlers(owner.service).answer(GetModel(name=NAME)))
    assert {one.path.name for one in status.caches} == {"named", "missing", "led", "net"}  # type: ignore[attr-defined]
    disk = asyncio.run(owner.service.disk.usage())
    of = {one.name: (one.further, one.present) for one in disk.models}
    assert of["former"] == (told["former"].allocated, False)
    assert of[NAME] == (sum(told[name].allocated for name in ("named", "led", "net")), True)
    assert disk.further == sum(one.allocated for one in told.values())


def test_what_is_ours_goes_into_the_trash_and_comes_back(owner: Owner) -> None:
    named, own = fill(owner.home / "named"), fill(owner.models / NAME / "inductor")
    owner.add(NAME, named)
    assert owner.remove(NAME) == {"named": "--cache names it", "net": ""}
    assert (named.exists(), own.exists()) == (True, False)
    (item,) = asyncio.run(owner.service.trash.all())
    assert (item.key, item.detail, item.whole) == ("net", "net was removed", True)
    assert item.allocated >= 5000
    assert owner.restore() == [""]
    assert [path.name for path in own.iterdir()] == ["0.so"]
    assert asyncio.run(owner.service.trash.all()) == ()


def test_what_was_named_goes_too_where_that_is_asked_for_and_comes_back(owner: Owner) -> None:
    named = fill(owner.home / "named")
    (owner.home / "link").symlink_to(owner.home)
    owner.add(NAME, owner.home / "link" / "named")
    assert owner.remove(NAME, caches=True) == {"named": ""}
    assert not named.exists()
    assert (owner.home / "link").is_symlink()
    # Where something else is by now, it waits.
    fill(named)
    (said,) = owner.restore()
    assert "something is in its place" in said
    assert len(asyncio.run(owner.service.trash.all())) == 1
    (named / "0.so").unlink()
    assert owner.restore() == [""]
    assert (named / "0.so").stat().st_size == 5000


def test_what_another_model_uses_stays(owner: Owner) -> None:
    """Be it the same, above, or below: and a model's own, if another one names it."""
    above = fill(owner.home / "above")
    fill(above / "below")
    fill(owner.models / NAME / "triton")
    owner.add(NAME, above)
    owner.add("other", above / "below", owner.models / NAME / "triton")
    assert owner.told()["net"].shared == ("other",)
    assert owner.remove(NAME, caches=True) == dict.fromkeys(("above", "net"), "other uses it, too")
    # Nor does it go with that other one, whose it never was.
    said = owner.remove("other", caches=True)
    assert said["below"] == ""
    assert "is a part of" in said["triton"]
    assert (above.exists(), (owner.models / NAME / "triton" / "0.so").exists()) == (True, True)


def test_what_would_go_is_said_and_stays(owner: Owner) -> None:
    named, own = fill(owner.home / "named", 2), fill(owner.models / NAME / "inductor")
    owner.add(NAME, named)

    def would(**more: bool) -> str:
        answer = asyncio.run(Handlers(owner.service).answer(RemoveModel(name=NAME, dry_run=True, **more)))
        assert isinstance(answer, RemovedModel)
        assert {one.path.name: one.stays for one in answer.caches} == {
            "named": "" if more else "--cache names it",
            "net": "",
        }
        return caches.removed(answer, TextStyle(api_stub.NOW))

    first, *lines = would().splitlines()
    assert first == "would remove net; its entries stay until they are evicted"
    assert sorted(line.partition(":")[0] for line in lines) == ["would go into the trash", "would stay"]
    assert [line.partition(":")[0] for line in would(caches=True).splitlines()[1:]] == ["would go into the trash"] * 2
    assert owner.told().keys() == {"named", "net"}
    assert owner.told()["net"].registered
    # It is what is done then.
    assert owner.remove(NAME, caches=True) == {"named": "", "net": ""}
    assert (named.exists(), own.exists()) == (False, False)


def test_what_directories_hold_is_measured_once_for_each_look_and_answer(
    owner: Owner, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured: list[Path] = []

    def measure(path: Path, seconds: float) -> model_caches.Measured:
        measured.append(path)
        return model_caches.measure(path, seconds)

    monkeypatch.setattr("xpucached.service.model_caches.measure", measure)
    aged(fill(owner.models / "former" / "triton").parent, 1)
    removed(owner, "former", 1)
    asyncio.run(owner.service.disk.usage())
    assert [path.name for path in measured] == ["former"]
    measured.clear()
    # The job that follows the look goes by what the look has found.
    owner.service.upkeep._evict_due = True
    asyncio.run(owner.service.upkeep._evict())
    assert [path.name for path in measured] == ["former"]
    assert owner.told() == {}


def test_however_many_directories_there_are_one_look_at_them_has_its_time(
    owner: Owner, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: dict[str, float] = {}

    def measure(path: Path, seconds: float) -> model_caches.Measured:
        given[path.name] = seconds
        return model_caches.measure(path)

    monkeypatch.setattr("xpucached.service.model_caches.measure", measure)
    # The time of a look has passed before its first directory.
    monkeypatch.setattr("xpucached.service.model_caches._ALL", 0.0)
    names = [f"former-{number}" for number in range(5)]
    for name in names:
        fill(owner.models / name)
    found = asyncio.run(owner.service.disk._caches.all())
    assert given == dict.fromkeys(names, 0.05)
    assert [(one.files, one.note) for one in found] == [(1, "")] * 5


def test_directories_that_are_no_model_s_are_looked_at_in_bounds(
    owner: Owner, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("xpucached.service.model_caches._MOST", 2)
    owner.add("zeta")
    for name in ("zeta", "a", "b", "c", f"half{removal.GONE}"):
        fill(owner.models / name)
    assert sorted(owner.told()) == ["a", "b", "zeta"]
    assert "others stay uncounted" in caplog.text
    assert set(owner.service.caches.removed()) == {f"half{removal.GONE}"}


def test_one_directory_is_counted_no_further_than_it_may_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(10):
        (tmp_path / f"file-{number}").touch()
        (tmp_path / f"folder-{number}").mkdir()
    assert (model_caches.measure(tmp_path).files, model_caches.measure(tmp_path).note) == (10, "")
    late = model_caches.measure(tmp_path, -1.0)
    assert (late.state, late.files, late.note) == (StoreState.OK, 0, "it holds more than was counted")
    monkeypatch.setattr(model_caches, "_MOST", 3)
    many = model_caches.measure(tmp_path)
    assert (many.files <= 3, many.note) == (True, "it holds more than was counted")


@pytest.mark.parametrize("what", ["home", "directory", "above", "own", "file"])
def test_what_holds_more_than_a_cache_stays_though_it_was_named(owner: Owner, what: str) -> None:
    project = fill(owner.home / "project")
    (owner.home / "file").write_text("")
    places = {
        "home": owner.home,
        "directory": project,
        "above": owner.home.parent,
        "own": owner.models.parent,
        "file": owner.home / "file",
    }
    owner.add(NAME, places[what], directory=project)
    (said,) = owner.remove(NAME, caches=True).values()
    assert said
    assert (project / "0.so").exists()
    assert (owner.home / "file").exists()
    assert asyncio.run(owner.service.trash.all()) == ()


def test_a_link_in_the_place_of_ours_leads_to_nothing_that_goes(owner: Owner) -> None:
    elsewhere = fill(owner.home / "elsewhere")
    owner.models.mkdir(parents=True)
    (owner.models / NAME).symlink_to(elsewhere)
    owner.add(NAME)
    (said,) = owner.remove(NAME).values()
    assert said
    assert (elsewhere / "0.so").exists()


@pytest.mark.flow
def test_what_a_program_uses_stays_until_it_ends(owner: Owner) -> None:
    own = fill(owner.models / NAME / "triton")
    owner.add(NAME)
    words = f"import sys; held = open({str(own / '0.so')!r}); print(flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", words], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as program:
        assert program.stdout is not None
        program.stdout.readline()
        (said,) = owner.remove(NAME).values()
        assert f"(process {program.pid}) uses it" in said
        assert own.exists()
        program.communicate()
    assert not owner.told()["net"].registered


@pytest.mark.flow
@pytest.mark.parametrize("below", ["", "triton"])
def test_what_a_program_uses_by_a_mount_of_its_own_stays(owner: Owner, tmp_path: Path, below: str) -> None:
    own = fill(owner.models / NAME / "triton")
    owner.add(NAME)
    (there := tmp_path / "there").mkdir()
    steps = 'mount --bind "$1" "$2" && exec 3< "$2/$3" && echo held && exec cat'
    words = [str(owner.models / NAME / below), str(there), os.path.relpath(own / "0.so", owner.models / NAME / below)]
    inside = ["unshare", "--map-root-user", "--mount", "sh", "-c", steps, "sh", *words]
    with subprocess.Popen(inside, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as program:
        assert program.stdout is not None
        if not program.stdout.readline():
            pytest.skip("no mounts here")
        (said,) = owner.remove(NAME).values()
        program.communicate()
    assert f"(process {program.pid}) uses it" in said
    assert own.exists()


def test_without_a_trash_it_is_gone(owner: Owner) -> None:
    settings = owner.context.settings
    owner.context.settings = replace(settings, policy=replace(settings.policy, trash_keep=0.0))
    own = fill(owner.models / NAME / "triton")
    owner.add(NAME)
    assert owner.remove(NAME) == {"net": ""}
    assert list(owner.models.iterdir()) == []
    assert not own.exists()


def test_what_one_that_was_killed_left_of_a_directory_goes_with_the_next_one(owner: Owner, tmp_path: Path) -> None:
    settings = owner.context.settings
    owner.context.settings = replace(settings, policy=replace(settings.policy, trash_keep=0.0))
    named = fill(tmp_path / "named")
    fill(named.with_name(f"named{removal.GONE}"))
    owner.add(NAME, named)
    assert owner.remove(NAME, caches=True) == {"named": ""}
    assert not list(tmp_path.glob("named*"))


def bounded(owner: Owner, size: int) -> None:
    """Let a trash keep no more than that."""
    settings = owner.context.settings
    owner.context.settings = replace(settings, policy=replace(settings.policy, trash_max_bytes=size))


@pytest.mark.parametrize("dry", [True, False])
def test_what_is_more_than_the_trash_keeps_is_said_to_stay_there_for_some_minutes(owner: Owner, *, dry: bool) -> None:
    names = ("small", "large", "last")
    places = [fill(owner.home / name, files) for name, files in zip(names, (1, 20, 2), strict=True)]
    owner.add(NAME, *places)
    refs = {name: one.ref for name, one in owner.told().items()}
    bounded(owner, 60_000)
    answer = asyncio.run(owner.service.models.remove(NAME, caches=True, dry_run=dry))
    # The oldest goes first, and there is room for the last one alone.
    assert answer.too_large == (refs["small"], refs["large"])
    told = caches.removed(answer, TextStyle(api_stub.NOW)).splitlines()[1:]
    words = "would go into the trash" if dry else "in the trash"
    briefly = f"{words} for some minutes at most, as that keeps no more than policy.trash_max_bytes: "
    assert [line.startswith(briefly) for line in told] == [True, True, False]
    assert all(line.startswith(words) for line in told)
    asyncio.run(owner.service.trash.tidy())
    assert [one.key for one in asyncio.run(owner.service.trash.all())] == ([] if dry else [str(places[2])])


@pytest.mark.parametrize("asked", [True, False])
def test_of_what_is_evicted_no_more_counts_as_in_the_trash_than_that_keeps(owner: Owner, *, asked: bool) -> None:
    former = fill(owner.models / "former" / "triton", 20)
    aged(former, 1)
    removed(owner, "former", 1)
    store = SyclStore(owner.home / ".cache" / "xpucached" / "sycl")
    for number in range(5):
        os.truncate(store.add(f"_ZTS{number}k", age=90000).bin, 0)
    bounded(owner, 20_000)
    report = evict(owner, asked=asked)
    assert len(report.removed) == 5
    assert [one.stays for one in report.caches] == [""]
    asyncio.run(owner.service.trash.tidy())
    there = sum(one.allocated for one in asyncio.run(owner.service.trash.all()))
    entries = report.freed - sum(one.allocated for one in report.caches)
    assert 0 < there < entries
    # Who does not tidy knows how much that is at most.
    assert report.trashed == (there if asked else 20_000)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_what_holds_files_of_others_stays(owner: Owner) -> None:
    own = fill(owner.models / NAME / "triton")
    os.chown(own / "0.so", 12345, -1)
    owner.add(NAME)
    (said,) = owner.remove(NAME).values()
    assert "user 12345" in said
    assert own.exists()


def plan(owner: Owner, *, asked: bool) -> dict[str, str]:
    """Give which directories would go, and why."""
    found = asyncio.run(owner.service.evictor.plan(asked=asked))
    assert found.frees == sum(one.cache.allocated for one in found.caches)
    return {one.cache.path.name: one.reason for one in found.caches}


def aged(place: Path, hours: int) -> None:
    """Let all that lies there have been used so long ago."""
    then = time.time() - 3600 * hours
    for path in place.rglob("*.so"):
        os.utime(path, (then, then))


def removed(owner: Owner, name: str, hours: int) -> None:
    """Let a model have been removed so long ago."""
    at = datetime.now(UTC) - timedelta(hours=hours)
    events = Events(lambda: at, owner.context.catalog)
    events.post("model-removed", name, {"model": name})
    assert asyncio.run(events.flush())
    owner.context.events = Events(owner.context.clock, owner.context.catalog)


def evict(owner: Owner, *, asked: bool = True) -> EvictionReport:
    """Evict, as somebody asks for it."""
    return asyncio.run(owner.service.evictor.work(asked=asked)(_Handle()))  # type: ignore[arg-type] # all that it asks


def test_what_is_left_of_a_model_that_is_gone_is_evicted_once_it_is_old_enough(owner: Owner) -> None:
    place = fill(owner.models / "former" / "triton")
    assert plan(owner, asked=False) == {}, "it is younger than the grace"
    aged(place, 1)
    assert plan(owner, asked=False) == plan(owner, asked=True) == {}, "another daemon of the user's may know the model"
    removed(owner, "former", 0)
    assert plan(owner, asked=False) == {}, "its file may come back"
    removed(owner, "former", 1)
    assert plan(owner, asked=False) == {"former": "model-gone"}
    report = evict(owner)
    assert [(one.path.name, one.stays) for one in report.caches] == [("former", "")]
    assert report.freed == report.trashed == report.plan.frees > 0
    assert owner.told() == {}
    assert owner.restore() == [""]
    assert (place / "0.so").exists()
    # What somebody has brought back stays until its model is removed again.
    assert plan(owner, asked=False) == plan(owner, asked=True) == {}
    # Half of one that a killed daemon was removing is nobody's.
    half = fill(owner.models / "other.xpucached.gone" / "triton").parent
    aged(half, 1)
    assert plan(owner, asked=False) == {half.name: "model-gone"}


def test_however_many_directories_somebody_brings_back_they_stay(owner: Owner) -> None:
    names = [f"{number:02}{'n' * 70}" for number in range(60)]
    for name in names:
        fill(owner.models / name)
        owner.add(name)
        owner.remove(name)
    assert set(owner.service.caches.removed()) == set(names)
    assert owner.restore() == [""] * 60
    assert owner.service.caches.removed() == {}
    told = asyncio.run(owner.context.events.since(0))
    assert sum(int(one.fields["restored"]) for one in told if one.topic == "restored") == 60


def test_what_a_daemon_that_died_had_not_removed_yet_with_its_model_is_known_to_be_left(
    owner: Owner, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = fill(owner.models / NAME / "triton")
    owner.add(NAME)

    def die(*_: object, **_more: object) -> None:
        raise SystemExit

    monkeypatch.setattr(owner.service.caches, "remove", die)
    with pytest.raises(SystemExit):
        owner.remove(NAME)
    after = Owner(Context(owner.context.settings, owner.context.catalog, {}), owner.home)
    assert not after.told()[NAME].registered
    assert NAME in after.service.caches.removed()
    assert place.exists()


def test_where_a_limit_is_passed_the_directories_go_that_were_used_longest_ago(owner: Owner) -> None:
    """Not those of pinned models, nor what a model names, nor what the daemon would only make again."""
    for name, hours in (("new", 1), ("old", 3), ("middle", 2), ("pinned", 9)):
        fill(owner.models / name / "inductor")
        aged(owner.models / name, hours)
        owner.add(name, fill(owner.home / f"of-{name}"))
    request = AddModel(name=ModelName("pinned"), command=("/bin/true",), directory=Path("/"), pinned=True, replace=True)
    asyncio.run(owner.service.models.add(request))
    each = owner.told()["old"].allocated
    settings = owner.context.settings
    owner.context.settings = replace(settings, policy=replace(settings.policy, max_bytes=4 * each))
    assert plan(owner, asked=True) == {}
    owner.context.settings = replace(settings, policy=replace(settings.policy, max_bytes=2 * each))
    assert plan(owner, asked=True) == {"old": "over-budget", "middle": "over-budget"}
    assert plan(owner, asked=False) == {}
    report = evict(owner)
    assert {one.path.name: one.stays for one in report.caches} == {"old": "", "middle": ""}
    assert owner.told().keys() == {"new", "pinned", "of-new", "of-old", "of-middle"}
    assert plan(owner, asked=True) == {}


def test_directories_stay_while_programs_cannot_be_looked_at(owner: Owner, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever may mount what he likes can have the kernel wait where a process of his is looked at."""
    place = fill(owner.models / "former" / "triton")
    aged(place, 9)
    removed(owner, "former", 9)
    stop = threading.Event()
    monkeypatch.setattr(directory_users, "users", lambda _places: stop.wait(60) and {})
    monkeypatch.setattr("xpucached.service.model_caches._LOOK", 0.2)
    try:
        (one,) = evict(owner).caches
    finally:
        stop.set()
    assert one.stays.startswith("it cannot be seen now whether a program uses it")
    assert place.exists()


@pytest.mark.parametrize("gone", [False, True])
@pytest.mark.parametrize(
    ("lacking", "entries", "directory"),
    [(0, False, False), (500_000, True, False), (2_000_000, False, True), (2_700_000, True, True)],
)
def test_where_the_disk_is_short_no_more_goes_than_makes_room(
    owner: Owner, lacking: int, *, entries: bool, directory: bool, gone: bool
) -> None:
    """Entries of no model go before a registered model's directory; one of a model that is gone makes room as well."""
    store = SyclStore(owner.home / ".cache" / "xpucached" / "sycl")
    for number in range(9):
        store.add(f"_ZTS2k{number}", size=60_000, age=7200)
    fill(owner.models / NAME / "triton", 300)
    aged(owner.models / NAME, 9)
    removed(owner, NAME, 9) if gone else owner.add(NAME)
    asyncio.run(owner.service.scanner.scan_stores())
    settings = owner.context.settings
    owner.context.settings = replace(settings, policy=replace(settings.policy, min_free_bytes=1 << 30, low_water=100))
    found = next(one for one in owner.context.catalog.read(store_subtotals) if one.allocated)
    places = (found.store, owner.service.caches.store)
    space = [DiskSpace(one, device=7, free=(1 << 30) - lacking) for one in places]
    # What lies in a store's trash goes before any of that.
    full = [replace(space[0], trash=lacking), space[1]]
    trash = asyncio.run(owner.service.evictor.plan(disk_space=full))
    assert (trash.evict, bool(trash.caches)) == ((), gone)
    plan = asyncio.run(owner.service.evictor.plan(disk_space=space))
    wanted = (lacking > owner.told()[NAME].allocated, True) if gone else (entries, directory)
    assert (bool(plan.evict), bool(plan.caches)) == wanted
    assert plan.frees >= lacking


def test_what_is_left_of_a_model_is_counted_as_gone_by_whoever_asks_for_a_limit_alone(owner: Owner) -> None:
    store = SyclStore(owner.home / ".cache" / "xpucached" / "sycl")
    for number in range(9):
        store.add(f"_ZTS2k{number}", size=60_000, age=7200)
    fill(owner.models / NAME / "triton", 300)
    aged(owner.models / NAME, 9)
    removed(owner, NAME, 9)
    asyncio.run(owner.service.scanner.scan_stores())
    settings = owner.context.settings
    limit = sum(one.allocated for one in owner.context.catalog.read(store_subtotals)) + 1
    owner.context.settings = replace(settings, policy=replace(settings.policy, max_bytes=limit))
    whole, one = (asyncio.run(owner.service.evictor.plan(reasons=some)) for some in ((), LIMITS[:1]))
    assert ([each.reason for each in whole.caches], whole.evict) == (["model-gone"], ())
    assert (one.caches, one.evict) == ((), ())


LIMITS: Final = ("over-budget", "low-space")


def test_what_goes_for_a_limit_goes_also_where_that_reason_alone_is_asked_for(owner: Owner) -> None:
    """Entries where directories pass the limit together with them, directories where they alone pass it."""
    store = SyclStore(owner.home / ".cache" / "xpucached" / "sycl")
    for number in range(9):
        store.add(f"_ZTS2k{number}", size=60_000, age=7200)
    owner.add(NAME)
    fill(owner.models / NAME / "triton", 300)
    asyncio.run(owner.service.scanner.scan_stores())
    entries = sum(one.allocated for one in owner.context.catalog.read(store_subtotals))
    settings = owner.context.settings
    for hours, limit in ((0, entries // 2 + owner.told()[NAME].allocated), (9, owner.told()[NAME].allocated // 2)):
        aged(owner.models / NAME, hours)
        owner.context.settings = replace(settings, policy=replace(settings.policy, max_bytes=limit))
        whole, one = (asyncio.run(owner.service.evictor.plan(reasons=reasons)) for reasons in ((), ("over-budget",)))
        assert (one.evict, one.frees) == (whole.evict, whole.frees)
        assert [each.cache.path for each in one.caches] == [each.cache.path for each in whole.caches]
        assert bool(whole.evict) is (hours == 0)
        assert bool(whole.caches) is (hours == 9)
    # What the disk lacks is another reason, and keeps nothing from going for this one.
    lacking = replace(settings.policy, max_bytes=owner.told()[NAME].allocated // 2, min_free_bytes=1 << 60)
    owner.context.settings = replace(settings, policy=lacking)
    one, both = (asyncio.run(owner.service.evictor.plan(reasons=some)) for some in (LIMITS[:1], LIMITS))
    assert [each.reason for each in one.caches] == ["over-budget"]
    assert (len(both.evict), [each.reason for each in both.caches]) == (9, ["low-space"])


@pytest.mark.parametrize("keep", [True, False])
def test_a_directory_that_was_used_since_it_was_looked_at_is_not_evicted(owner: Owner, *, keep: bool) -> None:
    """What was measured counts for a while; a program may have come and gone since."""
    settings = owner.context.settings
    policy = settings.policy if keep else replace(settings.policy, trash_keep=0.0)
    owner.context.settings = replace(settings, policy=policy)
    place = fill(owner.models / "former" / "triton", 2)
    aged(place, 1)
    removed(owner, "former", 1)
    measured = asyncio.run(owner.service.caches.all())
    (place / "1.so").read_bytes()
    os.utime(place / "1.so")
    work = owner.service.evictor.work(caches=measured)

    async def go_by_it() -> EvictionReport:
        return await work(_Handle())  # type: ignore[arg-type] # all that it asks

    (one,) = asyncio.run(go_by_it()).caches
    assert (one.stays, len([*place.iterdir()])) == ("it was used since it was looked at", 2)
    aged(place, 1)
    assert [one.stays for one in evict(owner).caches] == [""]


@pytest.mark.flow
def test_a_directory_that_a_program_uses_is_not_evicted(owner: Owner) -> None:
    place = fill(owner.models / "former" / "triton")
    aged(place, 1)
    removed(owner, "former", 1)
    words = f"import os, sys; os.chdir({str(place)!r}); print(flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", words], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as program:
        assert program.stdout is not None
        program.stdout.readline()
        (one,) = evict(owner).caches
        assert f"(process {program.pid}) uses it" in one.stays
        assert place.exists()
        program.communicate()
    assert [one.stays for one in evict(owner).caches] == [""]


def test_times_that_no_calendar_has_are_counted_as_now(owner: Owner) -> None:
    """Programs may set any; a file system that takes them is tmpfs, or btrfs."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as made:
        place = fill(Path(made) / "triton")
        os.utime(place / "0.so", (10**14, 10**14))
        if (place / "0.so").stat().st_mtime != 10**14:
            pytest.skip("this file system takes no such times")
        owner.add(NAME, place)
        told = owner.told()["triton"]
    assert (told.state, told.files) == (StoreState.OK, 1)
    assert told.used is not None
    assert told.used <= datetime.now(UTC)


def test_what_goes_while_it_is_counted_hides_nothing_beside_it(owner: Owner, monkeypatch: pytest.MonkeyPatch) -> None:
    """A compiler renames what it has written: it would look as if nobody had used the rest for long."""
    place = fill(owner.models / NAME / "triton", 9)
    owner.add(NAME)
    scan, gone = os.scandir, place / "passing.so"

    @contextlib.contextmanager
    def scandir(path: str) -> Iterator[list[os.DirEntry[str]]]:
        if path == os.fspath(place):
            gone.write_bytes(b"")
        with scan(path) as found:
            # What passes comes first.
            every = sorted(found, key=lambda one: one.name != gone.name)
        gone.unlink(missing_ok=True)
        yield every

    monkeypatch.setattr(os, "scandir", scandir)
    told = owner.told()[NAME]
    assert (told.files, told.note) == (9, "")
