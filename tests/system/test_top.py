"""`xpucachectl top`: what fits on which terminal, and that the terminal is as before afterwards."""

from __future__ import annotations

import json
import os
import signal
import termios
import unicodedata
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from tests.support import api_stub, histories
from tests.support.terminals import LEFT, Terminal
from xpucached.cli import main
from xpucached.domain.models import Warmth
from xpucached.domain.names import ModelName
from xpucached.render import top
from xpucached.render.text import TextStyle, cells

if TYPE_CHECKING:
    from pathlib import Path

    from xpucached.domain.overview import Overview


def test_it_follows_the_daemon_and_the_window_and_leaves_the_terminal_whole(tmp_path: Path) -> None:
    with api_stub.running(tmp_path) as door:
        asked = ("--socket", str(door.path), "top")
        one, other = Terminal(*asked), Terminal(*asked, columns=60)
        shown = one.wait_for(r"MODEL.*llama.*Last changes.*q quit")
        assert shown.startswith("\x1b[?1049h\x1b[?25l")
        assert "Warm: all 2 models are warm" in shown
        assert termios.tcgetattr(one.its) != one.before
        # A signal's byte ends it as a command is ended.
        assert "TO COMPILE" in other.wait_for(r"q quit")
        os.write(other.ours, b"\x03")
        other.wait_for(LEFT)
        assert other.close() == 130

        one.resize(50, 20)
        assert "TO COMPILE" not in one.wait_for(r"MODEL.*q quit")
        one.resize(30, 6)
        assert "MODEL" not in one.wait_for(r"Warm: all 2 models")
        one.resize(100, 24)
        one.wait_for("q quit")
    one.wait_for(r"no answer; shown is 08:30:00 UTC")
    with api_stub.running(tmp_path):
        one.wait_for("q quit")
        os.write(one.ours, b"q")
        one.wait_for(LEFT)
        assert one.close() == 0


def test_signals_and_a_terminal_that_closes_end_it(tmp_path: Path) -> None:
    with api_stub.running(tmp_path) as door:
        asked = ("--socket", str(door.path), "top")
        wide, narrow, closed = Terminal(*asked, columns=200), Terminal(*asked, columns=60), Terminal(*asked)
        assert "WHY" in wide.wait_for(r"MODEL.*q quit")
        assert "WHY" not in narrow.wait_for(r"MODEL.*q quit")
        closed.wait_for("q quit")
        # The window's signal is answered at once, and does not end it.
        wide.resize(60, 24)
        wide.program.send_signal(signal.SIGWINCH)
        assert "WHY" not in wide.wait_for(r"MODEL.*q quit")
        wide.program.send_signal(signal.SIGTERM)
        narrow.program.send_signal(signal.SIGHUP)
        for one, number in ((wide, signal.SIGTERM), (narrow, signal.SIGHUP)):
            one.wait_for(LEFT)
            assert one.close() == 128 + number
        # Its window was closed: nobody is left to say anything to, and nothing goes on for nobody.
        os.close(closed.ours)
        os.close(closed.its)
        assert closed.program.wait(10) in {0, 128 + signal.SIGHUP, -signal.SIGHUP}


def test_without_a_terminal_it_prints_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with api_stub.running(tmp_path) as door:
        asked = ("--socket", str(door.path), "top")
        assert main(asked) == 0
        text = capsys.readouterr().out
        assert "llama" in text
        assert "replay-4" in text
        assert "\x1b[?" not in text
        assert main([*asked, "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["data"]["host"] == "example"
        dumb, once = Terminal(*asked, term="dumb"), Terminal(*asked, "--once")
        for terminal in (dumb, once):
            assert "\x1b[?" not in terminal.wait_for("Last changes.*llama")
            assert terminal.close() == 0
    assert main(asked) == 69


def nasty() -> Overview:
    """Return a host on which names are hostile, and there are many models."""
    value, name = histories.make_overview(), ModelName(histories.NASTY + "[red]W" * 90)
    wide = ModelName("猫" * 60)
    return replace(
        value,
        host=name,
        sentence=f"Cold: {name} is cold",
        models=tuple(
            replace(value.models[0], model=one, why=name) for one in (name, wide, *map(ModelName, "abcdefgh"))
        ),
        warmth=tuple(replace(one, model=name, why=name) for one in value.warmth),
        under_way=tuple(replace(one, what=name, detail=name) for one in value.under_way) * 9,
    )


@pytest.mark.parametrize("width", [1, 7, 20, 39, 40, 59, 60, 80, 110, 200])
def test_every_line_fits_and_names_are_text(width: int) -> None:
    style = TextStyle(histories.NOW, width)
    for height in (1, 2, 7, 8, 10, 24, 60):
        for order in top.Order:
            for complaint in ("", histories.NASTY):
                lines = top.lines(nasty(), style, height=height, order=order, complaint=complaint)
                assert len(lines) <= height
                assert all(cells(line) <= width for line in lines)
                assert not {one for line in lines for one in line if unicodedata.category(one) in {"Cc", "Cf"}}
    if width >= 60:
        assert any("more" in line for line in top.lines(nasty(), style, height=16))


def test_models_stand_in_the_order_that_was_asked_for() -> None:
    value, style = histories.make_overview(), TextStyle(histories.NOW, 80)
    first, second = value.models
    value = replace(value, models=(first, replace(second, warmth=Warmth.COLD)))

    def names(order: top.Order) -> list[str]:
        lines = top.lines(value, style, height=40, order=order)
        heads = next(number for number, line in enumerate(lines) if line.startswith("MODEL"))
        return [line.split()[0] for line in lines[heads + 1 : heads + 3]]

    assert names(top.Order.STATE) == ["whisper", "llama"]
    assert names(top.Order.BYTES) == names(top.Order.COST) == ["llama", "whisper"]
