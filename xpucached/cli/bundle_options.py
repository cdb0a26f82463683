"""Door: what may be typed behind ``xpucachectl bundle``.  Reads the command line only."""

from __future__ import annotations

from typing import TYPE_CHECKING

from xpucached.domain.bundles import Compression

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable
    from pathlib import Path


def add(
    parser: argparse.ArgumentParser, verb: Callable[..., argparse.ArgumentParser], path: Callable[[str], Path]
) -> None:
    """Say what each command takes; ``path`` reads a path."""
    within = parser.add_subparsers(
        title="commands", dest="verb_", metavar="COMMAND", required=True, parser_class=type(parser)
    )
    one = verb("export", "write entries and their recipes into a bundle", within, "bundle export")
    one.add_argument("dest", metavar="DEST", type=path, help="a folder, or a file that ends with .tar; must not exist")
    one.add_argument("--store", type=path, metavar="DIR", help="what lies in this store, without asking the catalog")
    one.add_argument("--kind", metavar="KIND", help="sycl, neo")
    one.add_argument("--model", metavar="NAME", help="what this model uses")
    one.add_argument("--driver", metavar="V", help="this version; V* for the beginning of one")
    one.add_argument("--device", metavar="TEXT", help="part of the device's name")
    one.add_argument("--recipes-only", action="store_true", help="no compiled programs, only what they are made from")
    one.add_argument(
        "--compression", choices=[each.value for each in Compression], help="default: zstd if it is installed, or gzip"
    )
    one.add_argument(
        "--allow-switches", action="store_true", help="also where variables are set that change what is compiled"
    )
    one.add_argument("--with-names", action="store_true", help="put the models' names into the bundle")
    one.add_argument("--driver-root", type=path, metavar="DIR", help="the driver that compiled it, unpacked there")
    one.add_argument("--pretended", metavar="GPU", help="the GPU that this driver pretended, as for replay --device")
    one = verb("inspect", "say what is in a bundle", within, "bundle inspect")
    one.add_argument("source", metavar="BUNDLE", type=path, help="a folder or a .tar file")
    one = verb("verify", "read all of a bundle, and say whether it is whole", within, "bundle verify")
    one.add_argument("source", metavar="BUNDLE", type=path, help="a folder or a .tar file")
    one = verb("diff", "compare two bundles by what is in them; 1 if they differ", within, "bundle diff")
    one.add_argument("first", metavar="A", type=path, help="a folder or a .tar file")
    one.add_argument("second", metavar="B", type=path, help="another one")
