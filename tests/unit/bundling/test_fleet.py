"""Hosts are compared by what decides about compiled programs; what other hosts wrote may be forged."""

from __future__ import annotations

import json
import os
import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

import pytest
from msgspec.structs import replace

from tests.support.builders import sycl_target
from tests.support.bundles import TARGET, facts, forge, good, packed, tar
from xpucached import codec, messages
from xpucached.bundling import fleet
from xpucached.domain.bundles import CompilerLibrary
from xpucached.domain.fleet import DiffFleet, FleetReport, HostFingerprint, HostTarget, HostWarm
from xpucached.errors import NotFound, RequestError
from xpucached.render import fleet as written
from xpucached.render.text import TextStyle

if TYPE_CHECKING:
    from pathlib import Path

STYLE: Final = TextStyle(datetime(2026, 1, 1, tzinfo=UTC))
IGC: Final = CompilerLibrary("libigc.so", "build-id:" + "0" * 40)
HERE: Final = HostFingerprint((HostTarget(TARGET, "cpu:0"),), (IGC,), {"sycl": "dirs-v1"}, "a")
NEXT: Final = replace(
    HERE,
    targets=(HostTarget(sycl_target("Intel(R) OpenCL", "CPU", "OpenCL 3.0", "3"), "cpu:0"),),
    compiler=(CompilerLibrary("libigc.so", "build-id:" + "1" * 40),),
    host="c",
)


def wrote(place: Path, *hosts: HostFingerprint) -> Path:
    """Write what hosts told, a file for each."""
    place.mkdir(exist_ok=True)
    for number, one in enumerate(hosts):
        (place / f"{number}.json").write_bytes(codec.dumps(codec.to_json(one)))
    return place


def compared(*paths: Path, given: str | None = None, bundles: tuple[Path, ...] = ()) -> FleetReport:
    return fleet.diff(DiffFleet(paths, given, bundles), lambda *_: None)


# -- what a fingerprint is made of ------------------------------------------------------------------------------------


def test_a_fingerprint_is_made_of_what_decides_and_of_nothing_else() -> None:
    assert re.fullmatch(r"[0-9a-f]{16}", HERE.fingerprint)
    assert replace(HERE, host="another", warm=HostWarm(5)).fingerprint == HERE.fingerprint
    others = (
        replace(HERE, targets=(HostTarget(TARGET, "cpu:1"),)),
        replace(HERE, compiler=NEXT.compiler),
        replace(HERE, formats={"sycl": "dirs-v2"}),
        replace(HERE, targets=NEXT.targets),
    )
    assert len({HERE.fingerprint, *(one.fingerprint for one in others)}) == 1 + len(others)


@pytest.mark.parametrize(
    "unknown",
    [{"compiler": ()}, {"targets": ()}, {"targets": (HostTarget(TARGET),)}],
    ids=["compiler", "devices", "instructions"],
)
def test_what_is_not_known_is_equal_to_nothing(unknown: dict[str, object], tmp_path: Path) -> None:
    one = replace(HERE, **unknown)
    report = compared(wrote(tmp_path, one, replace(one, host="b")))

    assert one.fingerprint == ""
    assert [each.hosts for each in report.groups] == [("a",), ("b",)]
    assert not report.equal
    assert not compared(tmp_path / "0.json").equal


# -- many hosts -------------------------------------------------------------------------------------------------------


def test_equal_hosts_stand_together_and_the_others_with_what_differs(tmp_path: Path) -> None:
    report = compared(wrote(tmp_path, HERE, NEXT, replace(HERE, host="b")))

    assert [one.hosts for one in report.groups] == [("a", "b"), ("c",)]
    assert not report.groups[0].differences
    assert [(one.what, one.here[:11], one.most[:11]) for one in report.groups[1].differences] == [
        ("sycl: driver of CPU, through Intel(R) OpenCL", "3", "2"),
        ("libigc.so", "build-id:11", "build-id:00"),
    ]
    text = written.fleet(report, STYLE)
    assert "3 hosts, 2 fingerprints" in text
    assert "build-id:" + "1" * 12 + " " in text
    assert written.names(report) == "c"
    assert compared(tmp_path / "0.json", tmp_path / "2.json").equal


def test_a_device_may_be_called_anything(tmp_path: Path) -> None:
    odd = HostTarget(sycl_target("Intel(R) OpenCL", "{} {0} %s", "1", "2"), "cpu:0")
    report = compared(wrote(tmp_path, HERE, replace(HERE, host="b", targets=(odd,))))

    assert [(one.here, one.most) for one in report.groups[1].differences] in (
        [("not there", "2"), ("2", "not there")],
        [("2", "not there"), ("not there", "2")],
    )
    assert any("{} {0} %s" in one.what for one in report.groups[1].differences)


def test_what_only_some_have_is_named(tmp_path: Path) -> None:
    report = compared(wrote(tmp_path, HERE, replace(HERE, host="b"), replace(HERE, compiler=(IGC, *NEXT.compiler))))

    assert [one.what for one in report.groups[1].differences] == ["libigc.so"]


def test_hosts_come_from_files_folders_lines_and_the_answer_as_it_is_printed(tmp_path: Path) -> None:
    line = codec.dumps(codec.to_json(HERE)).decode()
    lines = tmp_path / "lines"
    lines.write_text(f"{line}\n{json.dumps({'api': 1, 'data': json.loads(line)})}\n\n")
    (tmp_path / "pretty").write_text(json.dumps(json.loads(line), indent=2))
    report = compared(lines, tmp_path / "pretty", wrote(tmp_path / "folder", HERE), given=line)

    assert report.equal
    # All of them call themselves the same.
    assert report.groups[0].hosts == (
        "a (0.json)",
        "a (lines:1)",
        "a (lines:2)",
        "a (pretty)",
        "a (standard input)",
    )


def test_without_a_file_it_says_so(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="is not there"):
        compared(tmp_path / "none.json")
    with pytest.raises(NotFound, match="no fingerprint"):
        compared(tmp_path)


# -- what others wrote ------------------------------------------------------------------------------------------------


def told(**more: object) -> bytes:
    return json.dumps({**json.loads(codec.dumps(codec.to_json(HERE))), **more}).encode()


FORGED: Final = {
    "nothing": b"",
    "a list": b"[]",
    "a number": b"1",
    "no schema": b"{}",
    "another schema": told(schema=2),
    "schema of text": told(schema="1"),
    "deep": b'{"schema":1,"targets":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "large": told(host="x" * fleet.LARGEST),
    "many": told(compiler=[{"name": "", "id": ""}] * 5000),
    "long": told(host="x" * 2000),
    "an option": told(host="-oProxyCommand=id"),
    "words": told(host="x y"),
    "a command": told(host="$(id)"),
    "long id": told(compiler=[{"name": "x", "id": "x" * 2000}]),
    "twice": b'{"schema":1,"schema":1}',
    "wrong types": told(targets=[{"target": {}}]),
    "half a character": told(host="\ud800"),
    "less than nothing": told(warm={"entries": -1}),
    "no UTF-8": b'{"schema":1,"host":"\xff"}',
    "not a number": b'{"schema":NaN}',
}


@pytest.mark.parametrize("data", FORGED.values(), ids=[*FORGED])
def test_what_no_host_would_write_is_not_read(data: bytes, tmp_path: Path) -> None:
    with pytest.raises(messages.BadMessage):
        fleet.read(data)

    # The others are compared nevertheless, and not called equal to it.
    (wrote(tmp_path, HERE) / "forged.json").write_bytes(data)
    report = compared(tmp_path)
    assert len(report.groups) == 1
    assert [one.source for one in report.unreadable] == ["forged.json"]
    assert not report.equal


def test_a_forged_fingerprint_does_not_count() -> None:
    assert fleet.read(told(fingerprint="0" * 16)).fingerprint == HERE.fingerprint
    assert fleet.read(told(compiler=[], fingerprint=HERE.fingerprint)).fingerprint == ""


def test_names_of_hosts_reach_no_terminal_as_they_are_and_are_no_options(tmp_path: Path) -> None:
    odd = "-x\x1b[2J\nfalse\u202e.json"
    (wrote(tmp_path, HERE, replace(HERE, host="b")) / odd).write_bytes(told(host="", compiler=[]))
    (tmp_path / f"{odd}.json").write_bytes(b"")
    report = compared(tmp_path)

    assert "\x1b" not in written.fleet(report, STYLE)
    assert written.names(report) == r"./-x\x1b[2J false\u202e.json"


def test_what_is_read_of_all_hosts_together_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = wrote(tmp_path, HERE, replace(HERE, host="b"))
    monkeypatch.setattr(fleet, "_LARGEST_TOGETHER", len(told()) + 1)
    with pytest.raises(RequestError, match="more than"):
        compared(place)


def test_two_hosts_that_have_thousands_of_things_do_not_differ_from_all_others_in_each(tmp_path: Path) -> None:
    """A hundred kilobytes for two of them, and some megabytes for ten thousand others, took all of the memory."""
    many = replace(HERE, formats={f"{number:04}": "" for number in range(fleet._MOST_VALUES - 100)})
    others = (told(host="", compiler=[{"name": "x", "id": str(number)}]) for number in range(500))
    (wrote(tmp_path, many, replace(many, host="b")) / "others.json").write_bytes(b"\n".join((*others, b"")))
    with pytest.raises(RequestError, match="than on most hosts takes more than"):
        compared(tmp_path)


def test_links_and_pipes_in_a_folder_are_not_followed(tmp_path: Path) -> None:
    (tmp_path / "there").write_bytes(told())
    place = wrote(tmp_path / "folder", HERE)
    (place / "link.json").symlink_to(tmp_path / "there")
    os.mkfifo(place / "pipe.json")
    report = compared(place)

    assert report.groups[0].hosts == ("a",)
    assert [one.source for one in report.unreadable] == ["link.json", "pipe.json"]


# -- bundles ----------------------------------------------------------------------------------------------------------


def test_it_says_what_each_host_could_take_from_a_bundle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    layer = tar(good())
    bundle = forge(tmp_path / "b", packed(layer), facts(layer, compiler=(IGC,), isa="cpu:0"))
    report = compared(wrote(tmp_path / "folder", HERE, NEXT), bundles=(bundle,))

    # It is not signed, and has no recipes.
    assert {one.taking for group in report.groups for one in group.takes} == {"nothing"}

    monkeypatch.setattr(fleet, "verdict", lambda *_: fleet_verdict())
    signed = {one.hosts: one.takes[0] for one in compared(tmp_path / "folder", bundles=(bundle,)).groups}
    assert (signed["a",].taking, signed["a",].why) == ("binaries", "where release is trusted")
    assert signed["c",].taking == "nothing"


def fleet_verdict() -> object:
    from xpucached.bundle.trust import SignatureVerdict  # noqa: PLC0415 - one test needs it

    return SignatureVerdict("release", "")


# -- for those who collect it -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "label"),
    [
        ("1.17.39395+14", "1.17.39395_14"),
        ("Intel(R) Arc(TM) B580 Graphics", "Intel_R__Arc_TM__B580_Graphics"),
        ("+x+", "x"),
        ("x" * 100, "x" * 63),
        ("x" * 62 + "+y", "x" * 62),
        ("\n", ""),
        ("ä", ""),
    ],
)
def test_a_value_keeps_the_rule_for_labels(text: str, label: str) -> None:
    assert written.label(text) == label


def test_each_line_of_features_is_one_that_node_feature_discovery_takes() -> None:
    target = sycl_target("Intel(R) Level-Zero", "Arc\nx=1 +", "1.6", "1+2")
    lines = written.features(replace(HERE, targets=(HostTarget(target, "gpu:1"),))).splitlines()

    rule = r"xpucached\.org/[a-z0-9-]+=[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?"
    assert len(lines) == 3
    assert all(re.fullmatch(rule, line) for line in lines)
    assert "fingerprint" not in written.features(replace(HERE, compiler=()))


def test_the_metrics_are_well_formed() -> None:
    target = sycl_target("Intel(R) OpenCL", 'a "quoted" \\ name\n', "1", "2")
    one = replace(HERE, targets=(*HERE.targets, HostTarget(target, "cpu:0")), warm=HostWarm(3, {"warm": 2, "cold": 0}))
    text = written.prometheus(one)

    assert f'xpucached_host_info{{fingerprint="{one.fingerprint}",kind="sycl",device="CPU",driver="2"}} 1\n' in text
    assert 'xpucached_host_models{warmth="warm"} 2\n' in text
    # What is not known is not there.
    assert "fingerprint" not in written.prometheus(replace(HERE, compiler=()))
    assert "entries" not in written.prometheus(HERE)
