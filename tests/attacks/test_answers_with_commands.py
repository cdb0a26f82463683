"""What answers says what it likes: a shell that reads ``xpucachectl env`` runs none of it, and no terminal obeys it."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

import pytest

from tests.support.api_stub import make_model, make_run, make_status
from tests.support.histories import make_overview
from tests.support.lying_server import liar
from tests.support.terminals import Terminal
from tests.unit.hostd.test_hostd import http
from tests.unit.hostd.test_hostd import liar as threaded_liar
from xpucached import codec, printing
from xpucached.api import client
from xpucached.api.endpoints import VERSION
from xpucached.domain.jobs import Event
from xpucached.printing import COLOURS, Clean, lines
from xpucached.processes import polling
from xpucached.render.text import Colour

if TYPE_CHECKING:
    from pathlib import Path

EVIL: Final = {
    "LD_PRELOAD": "/tmp/evil.so",
    "PATH": "/tmp/evil",
    "PYTHONSTARTUP": "/tmp/evil.py",
    "SYCL_CACHE_DIR": "/c'; touch owned; '",
    "SYCL_CACHE_PERSISTENT": "$(touch owned)`touch owned`",
    "x; touch owned #": "1",
    "\nexport LD_AUDIT": "/tmp/evil.so",
}
# Escapes, C1 controls, a direction mark, a backspace, a lone surrogate: in every text that a daemon can say.
NASTY: Final = "a\x1b[2J\x1b]0;owned\x07b\x9b31mc\u202ed\x08e\udc9bf\x7f\r\u2066g\x1b[31mh\x1b[0;31mi"
OBEYED: Final = re.compile(
    r"[\x00-\x09\x0b-\x1a\x1c-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]|\x1b(?!\[\d+m)"
)


def envelope(data: object) -> dict[str, object]:
    """Put data into an answer."""
    return {"api": VERSION, "data": data}


def ctl(path: Path, *words: str, **variables: str) -> subprocess.CompletedProcess[bytes]:
    """Call ``xpucachectl``."""
    return subprocess.run(
        [sys.executable, "-m", "xpucached.cli", *words],
        env={**os.environ, "XPUCACHED_SOCKET": str(path), **variables},
        capture_output=True,
        check=False,
        timeout=60,
    )


@pytest.mark.parametrize("words", [("env",), ("env", "--systemd"), ("env", "--docker")])
def test_a_shell_gets_nothing_but_the_variables_of_a_cache(
    short_dir: Path, tmp_path: Path, words: tuple[str, ...]
) -> None:
    with liar(short_dir / "s", {"/v1/env": envelope(EVIL), "/v1/status": envelope(codec.to_json(make_status()))}):
        done = ctl(short_dir / "s", *words)
    text = done.stdout.decode()

    assert done.returncode == 0, done.stderr
    assert sorted(re.findall(r"\b([A-Z_]+)=", text)) == ["SYCL_CACHE_DIR", "SYCL_CACHE_PERSISTENT"]
    assert b"LD_PRELOAD" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    if words == ("env",):
        # As the README says.
        shell = subprocess.run(
            ["/bin/sh", "-c", f'{text}\nprintf %s "$SYCL_CACHE_DIR"; echo; echo "${{LD_PRELOAD-none}}"'],
            capture_output=True,
            text=True,
            check=True,
            cwd=tmp_path,
        )
        assert shell.stdout == f"{EVIL['SYCL_CACHE_DIR']}\nnone\n"
    assert not list(tmp_path.glob("owned"))


def test_neither_does_a_program_that_reads_json(short_dir: Path) -> None:
    with liar(short_dir / "s", {"/v1/env": envelope(EVIL)}):
        done = ctl(short_dir / "s", "env", "--json")

    assert set(json.loads(done.stdout)["data"]) == {"SYCL_CACHE_DIR", "SYCL_CACHE_PERSISTENT"}


def spoiled(value: object, text: str = NASTY) -> object:
    """Put a text, the nasty one unless another is given, into every text of an answer that is free."""
    if isinstance(value, dict):
        return {key: _free(key, one, text) for key, one in value.items()}
    return [spoiled(one, text) for one in value] if isinstance(value, list | tuple) else value


_FREE: Final = (
    "sentence",
    "version",
    "message",
    "hint",
    "subject",
    "detail",
    "output",
    "name",
    "model",
    "target",
    "why",
)


def _free(key: str, value: object, text: str) -> object:
    return text if key in _FREE and isinstance(value, str) else spoiled(value, text)


def answers(text: str) -> dict[str, object]:
    """Return the answers of a daemon that says this wherever it can."""
    return {
        "/v1": envelope({"api": 1, "version": text, "features": []}),
        "/v1/status": envelope(spoiled(codec.to_json(make_status()), text)),
        "/v1/models": envelope(spoiled(codec.to_json((make_model(),)), text)),
        "/v1/runs": envelope(spoiled(codec.to_json((make_run(),)), text)),
        "/v1/config": envelope({text: text}),
        "/v1/jobs/1": {"api": 1, "error": {"code": "conflict", "message": text, "hint": text}},
    }


ANSWERS: Final = {**answers(NASTY), "text": f"\x1b[32mThis host is warm.\x1b[0m {NASTY}\n"}


@pytest.mark.parametrize(
    "words",
    [
        ("status",),
        ("status", "--no-color"),
        ("status", "--check"),
        ("-q", "status"),
        ("model", "list"),
        ("-q", "model", "list"),
        ("runs",),
        ("config", "show"),
        ("-q", "config", "show"),
        ("version",),
        ("jobs", "1"),
        ("jobs", "1", "--json"),
        ("status", "--json"),
    ],
    ids=" ".join,
)
@pytest.mark.usefixtures("terminal")
def test_no_text_of_an_answer_reaches_a_terminal_as_a_command(short_dir: Path, words: tuple[str, ...]) -> None:
    with liar(short_dir / "s", ANSWERS):
        main, end = pty.openpty()
        try:
            child = subprocess.Popen(
                [sys.executable, "-m", "xpucached.cli", *words],
                env={**os.environ, "XPUCACHED_SOCKET": str(short_dir / "s"), "TERM": "xterm", "COLUMNS": "100"},
                stdin=subprocess.DEVNULL,
                stdout=end,
                stderr=end,
            )
        finally:
            os.close(end)
        said = b""
        try:
            while part := os.read(main, 65536):
                said += part
        except OSError:
            pass
        finally:
            os.close(main)
            child.wait()
    text = said.decode("utf-8", "surrogateescape").replace("\r\n", "\n")

    assert text
    assert "Traceback" not in text
    assert OBEYED.findall(text) == []
    assert set(re.findall("\x1b\\[(\\d+)m", text)) <= COLOURS


@pytest.mark.parametrize(
    "words",
    [("status", "--no-color"), ("status", "--check"), ("model", "list"), ("runs",), ("version",), ("jobs", "1")],
    ids=" ".join,
)
def test_no_text_of_an_answer_fills_a_terminal(short_dir: Path, words: tuple[str, ...]) -> None:
    long = answers("long " * 100_000)

    def answer(request: bytes) -> bytes:
        target = request.split()[1].decode().partition("?")[0]
        return http(json.dumps(long[target]).encode())

    with threaded_liar(short_dir / "s", answer):
        done = ctl(short_dir / "s", *words)
    said = (done.stdout + done.stderr).decode()

    assert "long long" in said
    assert max(map(len, said.splitlines())) < 8 * printing.LONGEST


def test_a_refusal_s_texts_are_bounded_and_clean_for_whoever_is_told() -> None:
    refused = client.refusal("busy", f"{NASTY} {'long ' * 100_000}", NASTY)

    assert (refused.code, len(refused.message) < 2 * printing.LONGEST) == ("busy", True)
    assert OBEYED.findall(refused.message + refused.hint) == []


def test_events_are_written_again_and_not_passed_on(short_dir: Path) -> None:
    event = codec.to_json(Event(1, make_run().started, "alarm", NASTY, {"a": NASTY}))
    # Control characters stand in the line as they are, which is no JSON; and as a line that is.
    for line, status in ((json.dumps(event), 0), (f'{{"x": "{NASTY}"}}', 69)):
        with liar(short_dir / "s", {"text": None, "/v1/events": None, "raw": line}):
            done = ctl(short_dir / "s", "events", "--follow", "--json")
        assert OBEYED.findall(done.stdout.decode("ascii")) == []
        assert done.returncode in {status, 69}
        (short_dir / "s").unlink()


def test_our_own_colours_stay_and_no_others() -> None:
    assert {*Colour, "0"} == COLOURS
    assert lines("\x1b[32mwarm\x1b[0m\nx") == "\x1b[32mwarm\x1b[0m\nx"
    assert lines("a\x1b[5mb\x1b[1;31mc\x1b[m\x1b[31") == "a\\x1b[5mb\\x1b[1;31mc\\x1b[m\\x1b[31"
    assert OBEYED.findall(lines(NASTY)) == []
    assert printing.safe("tab\there\u00a0\u3000é") == "tab\\x09here\u00a0\u3000é"


def test_what_forgets_to_make_text_safe_is_caught_at_the_door(capsys: pytest.CaptureFixture[str]) -> None:
    print(NASTY, file=Clean(sys.stdout))

    assert OBEYED.findall(capsys.readouterr().out) == []


def test_events_with_numbers_that_none_can_have_end_nothing(short_dir: Path) -> None:
    event = Event(-5, datetime(2026, 3, 4, tzinfo=UTC), "model", "something happened", {})
    path, said = short_dir / "s", {"/v1/overview": make_overview(), "/v1/events": (event,)}
    with liar(path, {name: envelope(codec.to_json(value)) for name, value in said.items()}) as one:
        followed = ctl(path, "events", "--follow", "--limit", "1")
        assert b"an event cannot be read" in followed.stderr
        with Terminal("top", variables={"XPUCACHED_SOCKET": str(path)}) as terminal:
            assert one.process.stdout is not None
            heard = b""
            # Both commands, the page, and the page and the events behind it twice.
            while heard.count(b"asked") < 2 + 1 + 2 * 2:
                assert polling.readable(one.process.stdout.fileno(), seconds=30), terminal.wait_for("Traceback")
                heard += os.read(one.process.stdout.fileno(), 1 << 16)
            one.process.kill()
            terminal.wait_for("no answer; shown is")
