"""The blocks that our pages show, and who types those of a shell."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.hosts import Machine

REPOSITORY: Final = Path(__file__).resolve().parents[2]
SHELLS: Final = {"sh", "bash", "shell", "console"}
BY_HAND: Final = "by hand: "
PRINTED: Final = "printed"
"""The marker of what commands print, which may look like one."""
DATA: Final = {"toml", "ini", "json", "yaml", "dockerfile"}

_BLOCK: Final = re.compile(r"^```(?P<language>\w*) *(?P<marker>[^\n]*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
_NAMES: Final = {"NAME": "llama"}
_AWAITED: Final = " until xpucachectl --user -q status >/dev/null 2>&1; do sleep 0.2; done"
"""A person types slower than a daemon starts."""


@dataclass(frozen=True, slots=True)
class Block:
    """One block of a page."""

    page: str
    heading: str
    language: str
    marker: str  #: ``root``, ``user``, ``by hand: `` with the reason, or ``printed``
    text: str

    @property
    def typed(self) -> str:
        """The same, with names for what stands for one."""
        lines = [re.sub(r"^(xpucached --user &) *(#.*)?$", rf"\1{_AWAITED}", one) for one in self.text.splitlines()]
        if lines != self.text.splitlines():
            lines.append("kill $!; wait || true")
        return re.sub(r"\b[A-Z]{4}\b", lambda found: _NAMES.get(found[0], found[0]), "\n".join(lines))


def blocks(page: str) -> Iterator[Block]:
    """Yield the blocks of a page, in their order."""
    text = (REPOSITORY / page).read_text(encoding="utf-8")
    for found in _BLOCK.finditer(text):
        heads = re.findall(r"^#+ (.*)$", re.sub(_BLOCK, "", text[: found.start()]), re.MULTILINE)
        yield Block(page, heads[-1] if heads else "", found["language"], found["marker"], found["text"])


def pages() -> list[str]:
    """Return the pages that people read."""
    return ["README.md", *sorted(f"docs/{path.name}" for path in (REPOSITORY / "docs").glob("*.md"))]


def to_type() -> set[Block]:
    """Return all that a test has to type."""
    return {one for page in pages() for one in blocks(page) if one.marker in {"root", "user"}}


@dataclass(slots=True)
class Typist:
    """Types blocks on a machine, and remembers which."""

    machine: Machine
    place: str  #: root's directory
    typed: set[Block] = field(default_factory=set)

    def type(self, page: str, heading: str, number: int = 0, *, user: str = "") -> str:
        """Type one block of a shell that stands below a heading; give what was printed.  Each line must succeed."""
        marker = "user" if user else "root"
        found = [one for one in blocks(page) if (one.heading, one.marker) == (heading, marker)][number]
        self.typed.add(found)
        script = found.typed if user else f"cd {self.place}\n{found.typed}"
        done = self.machine.run("sh", "-e", "-c", script, user=user, session=bool(user))
        return done.stdout + done.stderr
