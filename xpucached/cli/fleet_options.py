"""Door: what may be typed behind ``fingerprint`` and ``fleet``.  Reads the command line only."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable
    from pathlib import Path


def add(verb: Callable[..., argparse.ArgumentParser], path: Callable[[str], Path]) -> None:
    """Say what each command takes; ``path`` reads a path."""
    one = verb("fingerprint", "tell what decides on this host about compiled programs, to compare it with others")
    form = one.add_mutually_exclusive_group()
    for name, help_ in (
        ("prometheus", "as metrics, for the textfile collector"),
        ("nfd", "as a file of features for Node Feature Discovery"),
        ("ansible", "as a local fact for Ansible"),
    ):
        form.add_argument(f"--{name}", dest="form", action="store_const", const=name, default="", help=help_)
    one.add_argument("--driver-root", type=path, metavar="DIR", help="of a driver that is unpacked there")
    one.add_argument("--device", metavar="GPU", help="as for a GPU that is not here: A770, bmg-g21, or a PCI id")
    within = verb("fleet", "compare hosts by their fingerprints").add_subparsers(
        title="commands", dest="verb_", metavar="COMMAND", required=True, parser_class=type(one)
    )
    one = verb("diff", "tell which hosts differ, and in what; 0: none does, 1: some do", within, "fleet diff")
    one.add_argument(
        "sources",
        nargs="+",
        metavar="SOURCE",
        help="a file that fingerprint --json wrote (or several, one a line), a folder of such, or - for standard input",
    )
    one.add_argument(
        "--bundle", action="append", default=[], type=path, metavar="BUNDLE", help="say who could take what from it"
    )
