"""Tables and figures: what people read."""

from __future__ import annotations

import shlex
import unicodedata
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.support import api_stub
from xpucached import printing
from xpucached.cli import belonging
from xpucached.domain.activity import Watching, WatchMode
from xpucached.domain.host import Problem
from xpucached.domain.jobs import ErrorInfo, Event, Job, JobState, Progress
from xpucached.domain.models import Layer, Outcome, RemovedModel
from xpucached.domain.names import EntryKey, EntryRef, JobId, KindName, ModelName, TrashRef
from xpucached.domain.plans import EvictionPlan, NoRecipe, ReplayPlan, SameInput
from xpucached.domain.queries import EntryPage
from xpucached.domain.recipes import RecipeState
from xpucached.domain.reports import PrewarmReport, ReplayReport, ScanReport, TrashReport, VerifyReport
from xpucached.domain.status import Verdict
from xpucached.domain.stores import EntryState, Kernel, Lookups, ModelCache, Store, StoreState
from xpucached.domain.trash import Comparison, Restored, Unproven
from xpucached.domain.usage import Saved
from xpucached.kinds.table import KINDS
from xpucached.kinds.variables import CACHE_VARIABLES, OURS, STORE
from xpucached.render import caches, entries, host, jobs, models, status, text, trash, usage, variables
from xpucached.render.text import Cell, Colour, TextStyle

if TYPE_CHECKING:
    from collections.abc import Callable

LOOK = TextStyle(api_stub.NOW + timedelta(days=3))


def test_the_first_line_of_status_is_the_sentence() -> None:
    written = status.status(api_stub.make_status(Verdict.COLD), LOOK)

    assert written.splitlines()[0] == "This host is cold."


def test_status_shows_what_it_rests_on() -> None:
    job = Job(JobId("5"), "scan", JobState.RUNNING, api_stub.NOW, progress=Progress(1, 4, "store"))
    written = status.status(api_stub.make_status(jobs=(job,)), LOOK)

    for needle in (
        "Linux 6.12.0",
        "3 entries, 12 KiB, 1 defective, 1 for drivers or devices that are not here",
        "changed 3 d ago: 24.1 → 25.18.33578",
        "Intel(R) Arc(TM) B580 Graphics  bmg-g21",
        "the runtime evicts here too",
        "there is no Level Zero driver (no-level-zero)",
        "install libze-intel-gpu1",
        "1/4",
    ):
        assert needle in written


def test_a_driver_that_several_caches_and_platforms_know_is_one_line() -> None:
    value = api_stub.make_status().host
    assert value is not None
    others = [replace(value.environments[0], kind=KindName("other")), replace(value.environments[0], family="another")]

    written = host.drivers_in_use(replace(value, environments=(value.environments[0], *others)), LOOK)

    assert written.count("all others") == 1


def test_a_table_is_aligned() -> None:
    written = text.table(("A", "N"), [["x", "1"], ["long", "100"], ["日本", "5"]], LOOK, right="N")

    assert written == "A       N\nx       1\nlong  100\n日本    5"


def test_progress_says_which_part_is_done_and_how_long_the_rest_takes() -> None:
    begun = api_stub.NOW
    job = Job(JobId("1"), "prewarm", JobState.RUNNING, begun, begun, progress=Progress(3, 20, "net: second pass"))
    assert jobs.progress(job) == "prewarm running 3/20 (15 %): net: second pass"
    later = begun + timedelta(seconds=60)
    assert jobs.progress(job, later) == jobs.progress(job), "nobody knows how long it takes"
    known = replace(job, progress=Progress(0, 1, "net: first pass", begun + timedelta(seconds=240)))
    assert jobs.progress(known, later) == "prewarm running 0/1 (25 %), about 3 min left: net: first pass"
    assert jobs.progress(known) == "prewarm running 0/1: net: first pass"
    late = begun + timedelta(seconds=1000)
    assert jobs.progress(known, late) == "prewarm running 0/1 (99 %): net: first pass"
    for ended in (JobState.DONE, JobState.FAILED):
        assert "%" not in jobs.progress(replace(known, state=ended), late)
    assert "about 3 min left; net: first pass" in jobs.jobs((known,), TextStyle(later))


def test_one_long_path_does_not_empty_a_table() -> None:
    heads = ("KIND", "STORE", "STATE", "SIZE")
    long = "/srv/" + "very-long/" * 10
    rows = [["sycl", "/var/cache/sycl", "ok", "1 B"], ["sycl", long, "ok", "2 B"], ["neo", "/var/cache/neo", "ok", "-"]]
    assert text.table(heads, rows, TextStyle(api_stub.NOW, 80), right="SIZE").splitlines() == [
        "KIND  STORE            STATE  SIZE",
        "sycl  /var/cache/sycl  ok      1 B",
        f"sycl  {long}",
        "                       ok      2 B",
        "neo   /var/cache/neo   ok        -",
    ]
    with_why = [[*row, "it is gone"] for row in rows]
    lines = text.table((*heads, "WHY"), with_why, TextStyle(api_stub.NOW, 80)).splitlines()
    assert lines[2:4] == [f"sycl  {long}", "                       ok     2 B   it is gone"]
    (only,) = text.table(("STORE",), [[long]], TextStyle(api_stub.NOW, 80)).splitlines()[1:]
    assert only == long


def test_a_table_that_is_too_wide_loses_columns_from_the_right_and_no_name_is_cut() -> None:
    heads = ("NAME", "STATE", "PCI", "ENTRIES", "FROM", "WHY")
    why = "all of its 17 entries are there, as was proven"
    rows = [["a" * 30, "warm", "-", "17", "command", why], ["b", "cold", "-", "0", "models.toml", "-"]]

    def shown(width: int | None) -> list[str]:
        written = text.table(heads, rows, replace(LOOK, width=width)).splitlines()
        assert all(text.cells(line) <= (width or 999) for line in written)
        return written

    assert [head for head in heads if head in shown(None)[0]] == [*heads]
    assert shown(110)[0].split() == ["NAME", "STATE", "ENTRIES", "FROM", "WHY"], "what says nothing goes first"
    assert shown(82)[0].split() == ["NAME", "STATE", "ENTRIES", "WHY"]
    narrow = shown(70)
    assert narrow[0].split() == ["NAME", "STATE", "WHY"]
    assert [line.split()[0] for line in narrow[1:]] == ["a" * 30, "there,", "b"], "a sentence goes on below itself"
    # Where there is no room beside the name, it stands below.
    assert shown(40)[:3] == [
        "NAME" + " " * 28 + "STATE",
        "a" * 30 + "  warm",
        "    all of its 17 entries are there, as",
    ]
    assert text.table(heads, rows, replace(LOOK, width=8)).splitlines()[1].startswith("a" * 30)


def test_only_a_kernel_s_name_is_cut() -> None:
    heads, rows = ("REF", "DRIVER", "KERNELS"), [["0123456789ab", "25.18", "gemm" * 30]]
    assert text.table(heads, rows, replace(LOOK, width=40)).splitlines()[1] == f"0123456789ab  25.18   {'gemm' * 4}g…"
    assert text.table(heads, rows, replace(LOOK, width=30)).splitlines()[1] == "0123456789ab  25.18"


@pytest.mark.parametrize(
    ("sentence", "parts"),
    [
        ("Warm: all 3 models are warm for driver 1.2", ("Warm: all 3 models are warm for driver 1.2", "")),
        (
            "Cold: 1 of 2 models is not warm; run: xpucachectl x",
            ("Cold: 1 of 2 models is not warm", "run: xpucachectl x"),
        ),
        (f"No device: {'a ' * 60}; see: x", ("No device", f"{'a ' * 60}; see: x")),
        (
            f"No device: none was found: it cannot be loaded (lib.so.1: no such file; {'a ' * 60}): they are not seen",
            (
                "No device: none was found: it cannot be loaded",
                f"(lib.so.1: no such file; {'a ' * 60}): they are not seen",
            ),
        ),
        (
            f"Failed: 1 of 3 models is cold for driver {'a' * 20} and could not be warmed ({'b' * 30}); see: x",
            (f"Failed: 1 of 3 models is cold for driver {'a' * 20} and could not be warmed", f"({'b' * 30}); see: x"),
        ),
        ("x" * 150, ("x" * 98 + "…", "x" * 150)),
    ],
)
def test_the_first_line_is_short(sentence: str, parts: tuple[str, str]) -> None:
    assert status.headline(sentence) == parts


@given(st.text())
def test_every_first_line_is_short(sentence: str) -> None:
    assert text.cells(status.headline(sentence)[0]) <= 99


def test_problems_that_are_alike_are_told_once() -> None:
    some = [Problem("full", f"store {number} is full", "free room") for number in range(3)]
    other = Problem("silent", "nobody answers")
    brief = host.problems([*some, other, other], LOOK, brief=True).splitlines()
    assert brief[:2] == ["! store 0 is full (full), and 2 more: xpucachectl doctor", "  free room"]
    assert brief[2:] == ["! nobody answers (silent)"]
    assert host.problems([*some, other, other], LOOK).count("!") == 4


def test_without_a_terminal_nothing_is_cut() -> None:
    assert "x" * 5000 in text.table(("A",), [["x" * 5000]], LOOK)


def test_one_long_text_fills_no_other_row_with_spaces() -> None:
    head, long, short = text.table(("A", "B"), [["x" * 5000, "y"], ["a", "b"]], LOOK).splitlines()
    assert long == f"{'x' * 5000}  y"
    assert len(head) == len(short) < 300


@pytest.mark.parametrize("width", [None, 80])
def test_nor_does_a_long_name_fill_other_lines(width: int | None) -> None:
    written = text.facts([("x" * 5000, "y"), ("a", "b " * 100)], replace(LOOK, width=width)).splitlines()
    assert written[0] == f"{'x' * 5000}  y"
    assert max(map(len, written[1:])) < 600
    assert len(written) < 15


FORGED = "x\nbob\n\x1b[31mall is well\x1b[0m; $(id)"


def test_no_answer_begins_a_line_of_its_own_or_a_colour() -> None:
    entry = api_stub.make_entry(1)
    entry = replace(entry, entry=replace(entry.entry, facts=((FORGED, "y"),)))
    done = replace(api_stub.make_eviction(dry_run=False), trashed=1, removed=(EntryRef(FORGED),))
    error = ErrorInfo("busy", "no", "")
    for written in (
        entries.entry(entry, LOOK),
        host.problems([Problem(FORGED, "it is full")], LOOK),
        jobs.eviction(done, LOOK),
        jobs.eviction(replace(api_stub.make_eviction(dry_run=True), plan_id=FORGED), LOOK),
        jobs.job(Job(JobId("1"), FORGED, JobState.FAILED, api_stub.NOW, error=error), LOOK),
        models.model(api_stub.make_model(FORGED), LOOK),
    ):
        assert not [line for line in written.splitlines() if line.startswith(("bob", "\x1b[31m"))], written
        assert "\x1b" not in written


def test_a_command_that_is_to_be_copied_holds_each_name_as_one_word() -> None:
    name = "x; touch owned"
    done = replace(api_stub.make_eviction(dry_run=False), trashed=1, removed=(EntryRef(name),))
    planned = replace(api_stub.make_eviction(dry_run=True), plan_id=name)
    run = replace(api_stub.make_run(), model=ModelName(name), outcome=Outcome.FAILED, output="said\nwhy")
    for written in (
        jobs.eviction(done, LOOK),
        jobs.eviction(planned, LOOK),
        jobs.prewarming(PrewarmReport((run,)), LOOK),
        models.model(replace(api_stub.make_model(name), beyond="more"), LOOK),
    ):
        (words,) = (
            line.partition("xpucachectl ")[2]
            for line in written.splitlines()
            if "xpucachectl " in line and "started by" not in line
        )
        assert name in shlex.split(words)


def test_a_name_of_what_takes_no_room_is_cut_in_one_go(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[int] = []

    def counted(some: str, cells: Callable[[str], int] = text.cells) -> int:
        looked.append(len(some))
        return cells(some)

    monkeypatch.setattr(text, "cells", counted)
    name = "name" * 20 + "\u0301" * 2000
    assert text.cut_within(name, 9) == "name…name" + "\u0301" * 2000
    assert sum(looked) < 20 * len(name)


def test_colours_come_only_when_asked_for() -> None:
    rows: list[list[str | Cell]] = [[Cell("bad", Colour.RED), "x"]]

    assert "\x1b" not in text.table(("A", "B"), rows, LOOK)
    painted = text.table(("A", "B"), rows, replace(LOOK, colour=True))
    assert "\x1b[31mbad\x1b[0m" in painted


@given(st.text() | st.text(st.characters(categories=["Cc", "Cf", "Cs", "Zl", "Zp"])))
def test_nothing_reaches_the_terminal_as_an_order(wild: str) -> None:
    tame = printing.safe(wild)

    assert all(one.isprintable() or one == " " or unicodedata.category(one) == "Zs" for one in tame)
    tame.encode("utf-8")


def test_nasty_names_are_shown_not_obeyed() -> None:
    defective = api_stub.make_defective()
    event = Event(1, api_stub.NOW, "evicted", api_stub.NASTY, {"store": api_stub.NASTY})
    run = api_stub.make_run()
    for written in (
        entries.entries((defective,), LOOK),
        entries.entry(defective, LOOK),
        jobs.event(event),
        models.run(run, LOOK),
        models.runs((replace(run, detail=api_stub.NASTY),), LOOK),
        jobs.progress(Job(JobId("1"), "scan", JobState.RUNNING, api_stub.NOW, progress=Progress(0, 0, api_stub.NASTY))),
        host.settings({"a": api_stub.NASTY}, LOOK),
    ):
        assert "\x1b" not in written
        assert "\u202e" not in written
        written.encode("utf-8")
    assert "\\x1b[31m" in jobs.event(event)


def test_lines_in_a_cell_do_not_break_the_table() -> None:
    assert text.table(("A",), [["a\nb\r\nc"]], LOOK) == "A\na b c"


@pytest.mark.parametrize(
    ("count", "words"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (10_240, "10 KiB"),
        (1024**2 - 1, "1.0 MiB"),
        (5 * 1024**5, "5120 TiB"),
    ],
)
def test_sizes(count: int, words: str) -> None:
    assert text.size(count) == words


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (None, "-"),
        (0.42, "0.42 s"),
        (9.999, "10 s"),
        (59.7, "1 min"),
        (185, "3 min 5 s"),
        (7800, "2 h 10 min"),
        (600, "10 min"),
        (7200, "2 h"),
        (1e308 + 1e308, "-"),
    ],
)
def test_durations(seconds: float | None, words: str) -> None:
    assert text.seconds(seconds) == words


@pytest.mark.parametrize(
    ("passed", "words"),
    [
        (0, "just now"),
        (-5, "just now"),
        (59, "59 s ago"),
        (3599, "59 min ago"),
        (86400, "1 d ago"),
        (10**7, "115 d ago"),
    ],
)
def test_ages(passed: int, words: str) -> None:
    assert text.age(api_stub.NOW, api_stub.NOW + timedelta(seconds=passed)) == words


def test_an_age_of_nothing() -> None:
    assert text.age(None, api_stub.NOW) == "never"


def test_every_value_about_an_entry_is_shown() -> None:
    written = entries.entry(api_stub.make_entry(1), LOOK)

    for needle in ("1/2/3/4/1", "25.18.33578", "bmg-g21", "-O2", "00ff", "spirv", "elf", "Gemm  [oneDNN]", "resnet"):
        assert needle in written


def test_what_a_kind_says_of_an_entry_and_the_same_program_elsewhere_are_shown() -> None:
    plain = api_stub.make_entry(1)
    facts = (("gpu", "bmg-g21, IP version 20.1.0"), ("format", "zebin 1.73"))
    bare = replace(plain.entry, environment=None, input="5f" * 32, facts=facts)
    others = tuple(
        SameInput(KindName(kind), Path(f"/{kind}"), EntryKey("k"), EntryRef(kind * 4), EntryState.OK, identical=same)
        for kind, same in (("abc", True), ("def", False))
    )
    written = entries.entry(replace(plain, entry=bare, elsewhere=others), LOOK)

    lines = [line.split() for line in written.splitlines()]
    for words in (["gpu", "bmg-g21,", "IP", "version", "20.1.0"], ["format", "zebin", "1.73"], ["sha256", "5f" * 32]):
        assert any(line[-len(words) :] == words for line in lines)
    assert ["abcabcabcabc", "abc", "ok", "the", "same", "/abc"] in lines
    assert ["defdefdefdef", "def", "ok", "another", "/def"] in lines
    assert "platform" not in written
    assert "platform" in entries.entry(replace(plain, entry=replace(bare, facts=())), LOOK)


def test_whether_an_entry_can_be_compiled_again_is_shown() -> None:
    plain = api_stub.make_entry(1)

    def shown(recipe: RecipeState | None, replay: str) -> list[str]:
        lines = entries.entry(replace(plain, recipe=recipe, replay=replay), LOOK).splitlines()
        return [" ".join(line.split()) for line in lines if line.startswith(("recipe", "replay"))]

    assert shown(None, "") == []
    assert shown(RecipeState.RECORDED, "possible") == [
        "recipe known: two passes asked for it, or its key comes out of what it holds",
        "replay yes: it can be compiled again without its program",
    ]
    assert shown(RecipeState.NEVER_AGAIN, NoRecipe.KIND) == [
        "recipe of no use: its program has another key for it at each start",
        "replay no: an entry of this kind is made by its program only: run the model",
    ]
    assert shown(RecipeState.ONCE, "a reason of another version")[0].startswith("recipe told by one pass")


def test_what_is_left_of_a_models_entries_is_said_by_the_kinds_of_caches() -> None:
    layers = (Layer(KindName("neo"), 3, 1, 1), Layer(KindName("other"), 2, 2, 2), Layer(KindName("sycl"), 1, 1))
    written = models.model(replace(api_stub.make_model(), layers=layers), LOOK)
    lines = [" ".join(line.split()) for line in written.splitlines()]
    assert "in neo it was proven with 3 entries; 2 of them gone or damaged; 1 of them cannot be read now" in lines
    assert "in other it was proven with 2 entries; 2 of them cannot be read now" in lines
    assert "in sycl it was proven with 1 entry; all are there" in lines


def test_a_page_says_how_much_it_leaves_out() -> None:
    page = EntryPage((api_stub.make_entry(1),), 20, 1 << 20, "1")

    assert entries.entry_total(page, 1) == "1 of 20 entries, 1.0 MiB"
    assert entries.entry_total(page, 20) == "20 entries, 1.0 MiB"


def test_what_a_program_printed_last_is_told_where_something_was_wrong() -> None:
    said = {outcome: replace(api_stub.make_run(), outcome=outcome, output="42\n").last_words for outcome in Outcome}
    assert {outcome for outcome, words in said.items() if not words} == {Outcome.WARMED, Outcome.UNCACHED}


def test_a_plan_is_not_a_report() -> None:
    planned = jobs.eviction(api_stub.make_eviction(dry_run=True), LOOK)
    done = jobs.eviction(api_stub.make_eviction(dry_run=False), LOOK)

    assert planned.endswith("would evict 1 entry and free 4.0 KiB, 2 entries kept")
    assert done.endswith("evicted 1 entry and freed 4.0 KiB, 2 entries kept")
    nothing = replace(api_stub.make_eviction(dry_run=False), plan=EvictionPlan((), 0, 0), removed=())
    assert jobs.eviction(nothing, LOOK) == "nothing to evict"
    trashed = replace(api_stub.make_eviction(dry_run=False), trashed=4096)
    assert jobs.eviction(trashed, LOOK).endswith(f"\nback again: xpucachectl trash restore {trashed.removed[0]}")
    several = replace(trashed, removed=trashed.removed * 2)
    assert jobs.eviction(several, LOOK).endswith("\nback again: xpucachectl trash restore REF")


def test_why_loads_are_not_seen_is_said_where_it_is_said_how_it_is_watched() -> None:
    said = {mode: status.watching(Watching(mode), LOOK) for mode in WatchMode}
    for mode in (WatchMode.FANOTIFY, WatchMode.CLASSIC):
        assert said[mode].endswith("; not what programs load (watch.loads)")
    for mode in (WatchMode.INOTIFY, WatchMode.POLLING):
        assert "watch.loads" not in said[mode]
        assert said[mode].endswith("by fanotify alone")
    unwatched = Saved(None, None, estimated=False, spared_month=0.0)
    assert "(see: xpucachectl doctor)" in usage.saved(unwatched, LOOK)


def test_what_became_of_a_job() -> None:
    job = Job(JobId("1"), "scan", JobState.FAILED, api_stub.NOW, error=ErrorInfo("busy", "too much", "wait"))

    assert jobs.job(job, LOOK) == "scan failed: too much\nwait"
    scanned = replace(job, state=JobState.DONE, error=None, report=ScanReport(2, 1, 0, 3, 9, 0.5))
    assert jobs.job(scanned, LOOK) == "looked at 2 stores in 0.50 s: 9 entries, 1 new, 0 changed, 3 gone"


def test_a_failed_run_says_how() -> None:
    run = api_stub.make_run()
    failed = replace(run, outcome=Outcome.FAILED, passes=(replace(run.passes[0], exit_status=-11),))

    assert "ended by signal 11" in models.run(failed, LOOK)


@pytest.mark.parametrize(
    ("syntax", "written"),
    [
        (variables.Syntax.SHELL, "export SYCL_CACHE_DIR='$x it'\"'\"'s \"b\" '\\\\' 100%'"),
        (variables.Syntax.SYSTEMD, 'Environment="SYCL_CACHE_DIR=$x it\'s \\"b\\" \\\\ 100%%"'),
        (variables.Syntax.DOCKER, 'SYCL_CACHE_DIR=$x it\'s "b" \\ 100%'),
        (variables.Syntax.ENVIRONMENT, 'SYCL_CACHE_DIR="$$x it\'s \\"b\\" \\\\ 100%"'),
    ],
)
def test_variables_are_written_for_who_reads_them(syntax: variables.Syntax, written: str) -> None:
    assert variables.variables({"SYCL_CACHE_DIR": '$x it\'s "b" \\ 100%'}, syntax, CACHE_VARIABLES) == written
    both = variables.variables({"SYCL_CACHE_PERSISTENT": "1", "SYCL_CACHE_DIR": "/c"}, syntax, CACHE_VARIABLES)
    assert [line.count("SYCL_CACHE_") for line in both.splitlines()] == [1, 1]


@pytest.mark.parametrize("syntax", variables.Syntax)
@pytest.mark.parametrize("text", ["a\nb", "a\x1b[2Jb", "a\x9bb", "a\u202eb", "a\udc80b", "a\x00b"])
def test_no_variable_has_control_characters(text: str, syntax: variables.Syntax) -> None:
    with pytest.raises(ValueError, match="control characters"):
        variables.variables({"SYCL_CACHE_DIR": text}, syntax, CACHE_VARIABLES)


def test_what_kinds_give_is_on_the_list() -> None:
    for kind in KINDS.values():
        assert {*kind.discovery.OFF} <= CACHE_VARIABLES
    values = {"SYCL_CACHE_DIR": "/c", "LD_PRELOAD": "/e", "PATH": "/e"}
    assert belonging.taken(values) == ({"SYCL_CACHE_DIR": "/c"}, ("LD_PRELOAD", "PATH"), ())
    assert STORE in CACHE_VARIABLES
    assert all(name.startswith(OURS) for name in CACHE_VARIABLES)
    given = [{**kind.discovery.enable(Path("/s")), **kind.discovery.EVERYWHERE} for kind in KINDS.values()]
    assert {*CACHE_VARIABLES} == {name for one in given for name in one}


def test_empty_lists_say_so() -> None:
    assert entries.stores((), LOOK) == "no stores"
    assert models.models((), LOOK) == "no models"
    assert models.runs((), LOOK) == "no runs"
    assert jobs.jobs((), LOOK) == "no jobs"


# -- kernels in a narrow terminal -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("full", "brief"),
    [
        ("plain", "plain"),
        ("", ""),
        ("dpctl::tensor::kernels::abs_krn<float, (unsigned char)4>", "abs_krn<float, 4>"),
        ("a::b<c::(anonymous namespace)::d<long> >", "b<d<long>>"),
        ("at::native::Functor<(int)-1, bool>::operator()", "Functor<-1, bool>::operator()"),
        ("odd::", "odd::"),
    ],
)
def test_the_function_comes_first(full: str, brief: str) -> None:
    assert entries.brief(full) == brief


def test_entries_stay_readable_in_a_narrow_terminal() -> None:
    long = "dpctl::tensor::kernels::some::very::deep::place::gemm_batch_k_krn<float, float, float>"
    some = tuple(api_stub.make_entry(number, kernels=(Kernel("_Z", long, None),)) for number in range(3))
    narrow = entries.entries(some, replace(LOOK, width=64))

    assert all(text.cells(line) <= 64 for line in narrow.splitlines()[:4])
    assert "gemm_batch_k_krn<float" in narrow
    assert "ARCH" not in narrow
    assert "in every row: arch bmg-g21, driver" in narrow
    assert "ARCH" in entries.entries(some, LOOK)
    assert "in every row" not in entries.entries(some, LOOK)
    assert long in entries.entry(some[0], LOOK)


def test_what_programs_found_stands_below_the_stores() -> None:
    store = api_stub.make_store()

    written = entries.stores((store, replace(store, lookups=Lookups(31, 2))), LOOK)

    assert [line for line in written.splitlines() if "looked for" in line] == [
        f"{store.store}: programs found 31 of 33 entries that they looked for, 93 %"
    ]


def test_entries_of_several_stores_stand_below_their_store() -> None:
    one, two = api_stub.make_entry(1), api_stub.make_entry(2)
    moved = replace(two, entry=replace(two.entry, id=replace(two.entry.id, store=Store(KindName("sycl"), Path("/b")))))

    lines = entries.entries((one, moved), LOOK).splitlines()

    assert lines[0] == str(one.entry.id.store.root)
    assert lines[lines.index("/b") + 2].startswith(moved.entry.id.ref)


def test_an_event_does_not_say_things_twice() -> None:
    fields = {"model": "net", "run": "1"}
    line = jobs.event(Event(1, api_stub.NOW, "run-finished", "net: warmed in 1.4 s", fields))

    assert line.endswith("run-finished: net: warmed in 1.4 s run=1")


def test_a_sentence_is_folded_character_by_character_and_not_once_more_for_each_word(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    counted: list[int] = []

    def cells(of: str) -> int:
        counted.append(len(of))
        return len(of)

    monkeypatch.setattr(text, "cells", cells)
    sentence = "word " * 500
    assert text.fold(sentence, TextStyle(api_stub.NOW, 1000)).count("\n") == 2
    assert sum(counted) < 2 * len(sentence)


def test_sentences_end_between_words_where_the_terminal_does() -> None:
    narrow = TextStyle(api_stub.NOW, 30)
    sentence = "one of three models is cold; run: xpucachectl prewarm --stale --and --more"
    folded = text.fold(sentence, narrow, 4)
    assert folded.splitlines()[:2] == ["one of three models is", "    cold; run:"]
    assert folded.splitlines()[2:] == ["    xpucachectl prewarm --stale --and --more"]
    assert " ".join(folded.split()) == sentence
    assert text.fold(sentence, TextStyle(api_stub.NOW)) == sentence
    bracketed = "it is to be proven again (xpucachectl prewarm NAME --force)"
    assert " ".join(text.fold(bracketed, narrow).split()) == bracketed
    shown = text.facts(
        [("state", "as cold as it can be here"), ("command", "python3 app.py --once")],
        TextStyle(api_stub.NOW, 20),
        whole=("command",),
    )
    assert shown.splitlines() == [
        "state    as cold as",
        "         it can be",
        "         here",
        "command  python3 app.py --once",
    ]


def test_what_is_there_to_be_copied_is_whole_however_long_and_the_rest_is_not() -> None:
    words = "word " * printing.LONGEST
    shown = text.facts([("command", words), ("why", words)], TextStyle(api_stub.NOW), whole=("command",))
    command, _, why = shown.partition("\nwhy")

    assert command.count("word") == printing.LONGEST
    assert 0 < why.count("word") < printing.LONGEST // 4


def test_references_are_never_cut() -> None:
    shown = text.table(("REF", "WHY"), [["0123456789ab", "a long sentence about it"]], TextStyle(api_stub.NOW, 20))
    assert shown.splitlines()[1:] == ["0123456789ab", "    a long sentence", "    about it"]


def test_what_could_not_be_looked_at_is_not_called_sound() -> None:
    looked = VerifyReport(False, 1, 3, seconds=1.0)  # noqa: FBT003 - it mends nothing
    style = TextStyle(api_stub.NOW)
    assert trash.verification(looked, style) == "looked at 3 entries in 1 store in 1.00 s: nothing is wrong"
    assert trash.verification(replace(looked, unread=2), style).endswith(
        "\n2 stores could not be looked at: whether anything is wrong there is unknown; see: xpucachectl stores"
    )
    assert trash.verification(replace(looked, unread_parts=2), style) == (
        "looked at 3 entries in 1 store in 1.00 s: not everything could be read; in the rest nothing is wrong\n"
        "2 directories or entries could not be read: whether anything is wrong there is unknown;"
        " see: xpucachectl stores"
    )


@pytest.mark.parametrize(("share", "said"), [(0.9999, "99%"), (0.29, "29%"), (0.004, "less than 1%"), (0.0, "0%")])
def test_a_share_is_never_rounded_to_what_it_is_not(share: float, said: str) -> None:
    report = ReplayReport(ReplayPlan(), dry_run=True, share=share)
    assert jobs.replay(report, TextStyle(api_stub.NOW)).endswith(f", {said} of what is in use")


@pytest.mark.parametrize("share", [1.0, 1e308, -1.0])
def test_a_share_of_what_is_none_is_not_told(share: float) -> None:
    report = ReplayReport(ReplayPlan(), dry_run=True, share=share)
    assert "of what is in use" not in jobs.replay(report, TextStyle(api_stub.NOW))


def test_a_list_of_the_trash_says_that_there_is_more(monkeypatch: pytest.MonkeyPatch) -> None:
    one = api_stub.make_trashed()
    style = TextStyle(api_stub.NOW, None)
    monkeypatch.setattr(trash, "LISTED", 3)
    assert trash.trash((one, one), style).endswith("2 in the trash, 8.0 KiB")
    assert trash.trash((one, one, one), style).endswith("; there is more in it, of which no more is listed")


def test_no_reference_of_an_answer_makes_a_line_or_a_command_of_its_own() -> None:
    ref = EntryRef("00ff\n; touch here")
    back = trash.trash_report(TrashReport((Restored(TrashRef("00ff"), EntryKey("1"), entry=ref),)), LOOK)
    deep = trash.comparison(Comparison(unproven={Unproven.OTHER_BYTES: 1}, differing=(ref,)), LOOK)
    assert [len(one.splitlines()) for one in (back, deep)] == [1, 2]
    gone = ModelCache(ModelName("net"), Path("/cache"), "", ref, StoreState.OK, 0, 1, 1)
    (_, line) = caches.removed(RemovedModel(ModelName("net"), caches=(gone,)), LOOK).splitlines()
    assert len(shlex.split(line.partition("xpucachectl trash restore $")[2])) == 1
