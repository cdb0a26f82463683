"""Run a command in a terminal of its own and draw what it printed as an SVG picture whose text can be selected.

Usage: ``record.py --output PICTURE.svg [--columns N] -- COMMAND...``

It understands what line-by-line programs print: text, colours and line ends.  Standard library only.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import pty
import re
import struct
import sys
import termios
from dataclasses import dataclass, replace
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

BACKGROUND: Final = "#16181d"
FOREGROUND: Final = "#d7dae0"
COLOURS: Final = {
    30: "#6b7280",
    31: "#f2777a",
    32: "#8ec07c",
    33: "#e5c07b",
    34: "#7aa2f7",
    35: "#c58fd8",
    36: "#6fc3d8",
    37: FOREGROUND,
}

# The widths of a monospaced letter differ between fonts by less than a percent; textLength below makes them equal.
SIZE: Final = 13.0
ADVANCE: Final = 7.8
LINE: Final = 18.0
MARGIN: Final = 16.0

_SGR: Final = re.compile(r"\x1b\[([\d;]*)m")
_OTHER: Final = re.compile(r"\x1b\[[\d;?]*[A-Za-ln-z]|\x1b\][^\x07]*\x07|\x1b[=>]")


@dataclass(frozen=True, slots=True)
class Style:
    """How a stretch of text looks."""

    colour: int | None = None
    bold: bool = False
    dim: bool = False

    def changed(self, code: int) -> Style:
        """Return the style after one SGR number."""
        if code == 0:
            return Style()
        if code in {1, 2}:
            return replace(self, bold=self.bold or code == 1, dim=self.dim or code == 2)  # noqa: PLR2004 - SGR's dim
        bright = code - 60
        return replace(self, colour=code if code in COLOURS else bright if bright in COLOURS else None)

    @property
    def attributes(self) -> str:
        """Give it as attributes of an SVG element."""
        said = f' fill="{COLOURS[self.colour]}"' if self.colour is not None else ""
        return said + (' font-weight="bold"' if self.bold else "") + (' opacity="0.6"' if self.dim else "")


def run(command: list[str], columns: int) -> tuple[str, int]:
    """Run a command in a terminal of that width, and pass on what it prints; gives that and the exit status."""
    child, terminal = pty.fork()
    if child == 0:
        fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
        os.environ["TERM"] = "xterm-256color"
        os.execvp(command[0], command)  # noqa: S606 - the person named it
    printed = bytearray()
    while True:
        try:
            data = os.read(terminal, 65536)
        except OSError:  # Linux says so when the last program closes the terminal
            break
        if not data:
            break
        printed += data
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
    os.close(terminal)
    _, status = os.waitpid(child, 0)
    return printed.decode("utf-8", "replace"), os.waitstatus_to_exitcode(status)


def stretches(line: str) -> Iterator[tuple[str, Style]]:
    """Take a line apart where its look changes.  Every line starts plain."""
    position, style = 0, Style()
    for match in _SGR.finditer(line):
        yield line[position : match.start()], style
        for code in match[1].split(";"):
            style = style.changed(int(code or 0))
        position = match.end()
    yield line[position:], style


def draw(printed: str, columns: int) -> str:
    """Draw a terminal that shows this."""
    # What stands before a lone carriage return was overwritten.
    lines = [line.rpartition("\r")[2] for line in _OTHER.sub("", printed).replace("\r\n", "\n").strip("\n").split("\n")]
    width, height = round(columns * ADVANCE + 2 * MARGIN), round(len(lines) * LINE + 2 * MARGIN)
    fonts = "ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace"
    rows = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}">',
        f'<rect width="100%" height="100%" rx="8" fill="{BACKGROUND}"/>',
        f'<g font-family="{fonts}" font-size="{SIZE:g}" fill="{FOREGROUND}" xml:space="preserve">',
    ]
    for number, line in enumerate(lines):
        column = 0
        spans = []
        for stretch, style in stretches(line):
            shown = stretch[: max(0, columns - column)]
            if shown.strip():
                # Blanks at the edges are only distance, and not every viewer keeps them.
                text = shown.strip()
                x = MARGIN + (column + len(shown) - len(shown.lstrip())) * ADVANCE
                look = f'x="{x:.1f}" textLength="{len(text) * ADVANCE:.1f}"{style.attributes}'
                spans.append(f"<tspan {look}>{escape(text)}</tspan>")
            column += len(stretch)
        if spans:
            rows.append(f'<text y="{MARGIN + (number + 0.75) * LINE:.1f}">{"".join(spans)}</text>')
    return "\n".join([*rows, "</g>", "</svg>", ""])


def main() -> int:
    """Record; gives the command's exit status, and writes no picture of a failure."""
    parser = argparse.ArgumentParser(description="Draw what a command prints as an SVG picture.")
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--columns", type=int, default=110)
    parser.add_argument("command", nargs="+")
    options = parser.parse_args()
    text, status = run(options.command, options.columns)
    if status == 0:
        options.output.write_text(draw(text, options.columns), encoding="utf-8")
    return status


if __name__ == "__main__":
    sys.exit(main())
