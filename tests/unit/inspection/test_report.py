"""A kernel that several images hold, images beside programs, and the text for people."""

from __future__ import annotations

import json
import struct
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest

from tests.support.builders import spirv
from tests.support.device_images import archives, program
from xpucached.cli.program import main
from xpucached.errors import NotFound, RequestError
from xpucached.inspection import containers, devices, programs, report
from xpucached.inspection.content import MemoryContent, Unreadable
from xpucached.inspection.report import Inspector
from xpucached.render.inspection import brought, inspection
from xpucached.render.text import TextStyle

if TYPE_CHECKING:
    from pathlib import Path

NATIVE = archives()["15_pvc+bmg+dg2+arl-h+mtl-h+lnl-m.x"]


def test_code_that_is_compiled_already_comes_first(tmp_path: Path) -> None:
    names = ("scale", "add")
    (tmp_path / "a.so").write_bytes(program(("spir64_gen", NATIVE[:40000], names), ("spir64", spirv(*names), names)))
    value = Inspector(devices.asked(["B580", "pvc", "Wildcat Lake", "cpu"])).inspect("x", [tmp_path])

    assert [(one.ready, one.compiled, one.absent, one.unknown) for one in value.totals] == [
        (2, 0, 0, 0),
        (2, 0, 0, 0),
        (0, 0, 0, 2),  # the runtime takes the native one, which the driver refuses: it depends on the runtime
        (0, 2, 0, 0),
    ]
    assert [one.disputed for one in value.totals] == [0, 0, 2, 0]
    assert "2 have code for other GPUs beside SPIR-V" in inspection(value, TextStyle(datetime.now(UTC)))


def test_images_beside_programs_are_read() -> None:
    image = spirv("a")
    rows = [(b"host-x86_64", b""), (b"sycl-spir64_gen-unknown", NATIVE), (b"sycl-spir64", image)]
    at = 32 + sum(24 + len(name) for name, _ in rows)
    table, body = b"", b""
    for name, data in rows:
        table += struct.pack("<3Q", at + len(body), len(data), len(name)) + name
        body += data
    bundle = b"__CLANG_OFFLOAD_BUNDLE__" + struct.pack("<Q", len(rows)) + table + body
    found = containers.images(MemoryContent(bundle))
    assert [(one.target, one.size) for one in found] == [("spir64_gen", len(NATIVE)), ("spir64", len(image))]
    with pytest.raises(Unreadable):
        containers.images(MemoryContent(bundle[:-1]))

    head = struct.pack("<4sI3Q", b"\x10\xff\x10\xad", 1, 72 + len(image), 32, 40)
    binary = head + struct.pack("<HHIQQQQ", 4, 8, 0, 0, 0, 72, len(image)) + image
    assert [(one.offset, one.size) for one in containers.images(MemoryContent(binary * 2))] == [
        (72, len(image)),
        (72 + len(binary), len(image)),
    ]
    static = b"!<arch>\n/               0           0     0     0       4         `\nabcd"
    assert containers.images(MemoryContent(static)) == ()
    assert "linker" in containers.leftover(MemoryContent(static))


def test_people_read_a_sentence_for_each_device(tmp_path: Path) -> None:
    (tmp_path / "a.so").write_bytes(program(("spir64", spirv("a", "b"), ("a", "b"))))
    (tmp_path / "b.bin").write_bytes(NATIVE)
    style = TextStyle(datetime.now(UTC))
    asked = devices.asked(["B580"])
    text = inspection(
        Inspector(asked, rate=0.01, used={b"a": 3.0, b"other": 1.0}, kept_in=("sycl: /s",)).inspect("env", [tmp_path]),
        style,
    )
    assert "B580 (bmg-g21): of 4 kernels 2 run as they are, 2 are compiled at first use" in text.replace("\n", " ")
    assert "); the model has compiled 1 of them" in text
    assert "Kept in\nsycl: /s" in text
    value = Inspector(asked, rate=0.01, used={b"a": 3.0, b"other": 1.0}).inspect("net", [tmp_path])
    assert "a.so on bmg-g21: 2 are compiled at first use" in brought(value, style)
    assert "it has compiled 1, 75% of all that it has compiled" in brought(value, style)
    late = Inspector(asked, limit=-1.0).inspect("net", [tmp_path])
    assert "xpucachectl inspect net" in brought(late, style)
    assert "name the one that is meant: --device B580" in inspection(Inspector(()).inspect("env", [tmp_path]), style)
    (tmp_path / "empty").mkdir()
    assert "no device code" in inspection(Inspector(asked).inspect("env", [tmp_path / "empty"]), style)


def test_two_reports_from_the_field_are_told_before_anything_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "torch-2.9.0+cpu.dist-info").mkdir()
    (tmp_path / "gptq.so").write_bytes(program(("spir64", spirv("a", "b"), ("a", "b"))))
    nobody = ["--socket", str(tmp_path / "none")]

    assert main([*nobody, "inspect", str(tmp_path), "--device", "B580"]) == 0
    text = capsys.readouterr().out
    assert "B580 (bmg-g21): of 2 kernels 2 are compiled at first use" in text
    assert "torch 2.9.0+cpu is a build for processors: it brings no code for a GPU" in text
    assert main([*nobody, "inspect", str(tmp_path), "--device", "B580", "--json"]) == 0
    (total,) = json.loads(capsys.readouterr().out)["data"]["totals"]
    assert (total["architecture"], total["compiled"], total["ready"]) == ("bmg-g21", 2, 0)
    assert main([*nobody, "inspect", str(tmp_path / "nothing")]) == NotFound.exit
    assert main([*nobody, "inspect", str(tmp_path), "--device", "Z999"]) == RequestError.exit
    assert "no GPU 'Z999' is known" in capsys.readouterr().err


def test_images_that_overlap_are_not_read_over_and_over(tmp_path: Path) -> None:
    image = spirv("a") + bytes(1 << 16)
    rows = [(24 * 3 + 32 + 18, len(image) - number) for number in range(3)]
    head = b"__CLANG_OFFLOAD_BUNDLE__" + struct.pack("<Q", 3)
    for at, size in rows:
        head += struct.pack("<3Q", at, size, 6) + b"sycl-s"
    (tmp_path / "overlapping.o").write_bytes(head + image)
    found = Inspector(devices.asked(["cpu"])).inspect("x", [tmp_path])
    assert found.unread
    assert "overlap" in str(found.notes)
    same = b"__CLANG_OFFLOAD_BUNDLE__" + struct.pack("<Q", 3)
    for _ in rows:
        same += struct.pack("<3Q", rows[0][0], len(image), 6) + b"sycl-s"
    (tmp_path / "overlapping.o").write_bytes(same + image)
    assert not Inspector(devices.asked(["cpu"])).inspect("x", [tmp_path]).unread


def bundle(*images: tuple[bytes, int, int]) -> bytes:
    """What a compiler hands to its linker; of each image its target, and where it lies behind the table."""
    at = 32 + sum(24 + len(target) for target, _, _ in images)
    rows = (struct.pack("<3Q", at + offset, size, len(target)) + target for target, offset, size in images)
    return b"__CLANG_OFFLOAD_BUNDLE__" + struct.pack("<Q", len(images)) + b"".join(rows)


def test_one_image_for_many_targets_is_not_read_for_each_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report, "_FEW", 0)
    image = spirv("a") + bytes(1 << 16)
    file = tmp_path / "one.o"
    for count, unread in ((20, False), (400, True)):
        file.write_bytes(bundle(*((b"sycl-t%d-x" % number, 0, len(image)) for number in range(count))) + image)
        found = Inspector(devices.asked(["cpu"])).inspect("x", [tmp_path])
        assert found.unread is unread
        assert ("read over and over" in str(found.notes)) is unread


def test_names_of_all_images_of_a_file_are_bounded_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    some = [spirv(*(f"kernel{number}{one}" for one in range(10))) for number in range(10)]
    places = [(b"sycl-spir64", sum(map(len, some[:number])), len(one)) for number, one in enumerate(some)]
    (tmp_path / "many.o").write_bytes(bundle(*places) + b"".join(some))
    (file,) = Inspector(devices.asked(["cpu"])).inspect("x", [tmp_path]).files
    assert file.kernels == 100
    for bound in ("MOST_KERNELS", "MOST_NAMES"):
        monkeypatch.setattr(programs, bound, 99)
        found = Inspector(devices.asked(["cpu"])).inspect("x", [tmp_path])
        assert (found.unread, found.files) == (True, ())
        assert "more kernels than any program" in str(found.notes)
        monkeypatch.undo()


def test_kernels_of_one_image_that_stands_there_many_times_are_counted_once(tmp_path: Path) -> None:
    # To go through its kernels for each of its rows would not end within the test's time limit.
    image = spirv(*map(str, range(60_000)))
    (tmp_path / "one.o").write_bytes(bundle(*[(b"sycl-spir64-x", 0, len(image))] * 60_000) + image)
    (file,) = Inspector(devices.asked(["B580"])).inspect("x", [tmp_path]).files

    assert (file.images, file.kernels, file.outlooks[0].compiled) == (60_000, 60_000, 60_000)
    assert file.outlooks[0].compile_size == len(image)
