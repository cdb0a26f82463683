"""Door: how far something is, on a terminal or line by line; without what jobs need, which takes long to load."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from xpucached.printing import plain

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@contextmanager
def bar() -> Iterator[Callable[[int, int, str], None]]:
    """Give what moves a bar: how much is done, of how much (0: not known), and of what."""
    # Most commands never watch anything, and rich takes longer to load than they take to run.
    from rich.console import Console  # noqa: PLC0415 - see above
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn  # noqa: PLC0415 - see above

    # Its escapes are its own; what it writes about a job is safe already.
    console = Console(file=sys.__stderr__, highlight=False, markup=False)
    columns = (BarColumn(bar_width=20), TimeElapsedColumn(), TextColumn("{task.description}", markup=False))
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("", total=None)

        def show(done: int, total: int, words: str) -> None:
            progress.update(task, description=plain(words), completed=done, total=total or None)

        yield show


@contextmanager
def told_in_steps(*, quiet: bool) -> Iterator[Callable[[int, int, str], None]]:
    """Give what shows how far something is that is no job: how much is done, of how much, and of what."""
    if quiet or not sys.stderr.isatty():
        said: list[str] = []

        def line(_done: int, _total: int, words: str) -> None:
            if not quiet and said[-1:] != [words]:
                said.append(words)
                print(plain(words), file=sys.stderr, flush=True)

        yield line
        return
    with bar() as update:
        yield update


@contextmanager
def told_what_is_read(*, quiet: bool) -> Iterator[Callable[[str], None]]:
    """Give what shows whoever sits at a terminal what is read just now; logs have no use for it."""
    if quiet or not sys.stderr.isatty():
        yield lambda _name: None
        return
    with bar() as update:
        yield lambda name: update(0, 0, plain(name)[-_LONGEST_NAME:])


_LONGEST_NAME: Final = 50
"""Characters of a path that fit beside the bar: its end says most."""
