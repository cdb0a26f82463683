"""Door: what may be typed behind ``xpucachectl bundle``.  Reads the command line only."""

from __future__ import annotations

from typing import TYPE_CHECKING

from xpucached.cli import option_values as values
from xpucached.domain.bundles import Binaries, Compression
from xpucached.domain.targets import Origin

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable
    from pathlib import Path


def add(
    parser: argparse.ArgumentParser,
    verb: Callable[..., argparse.ArgumentParser],
    path: Callable[[str], Path],
    seconds: Callable[[str], float],
) -> None:
    """Say what each command takes; ``path`` and ``seconds`` read a path and a time."""
    within = parser.add_subparsers(
        title="commands", dest="verb_", metavar="COMMAND", required=True, parser_class=type(parser)
    )
    one = verb("export", "write entries and their recipes into a bundle", within, "bundle export")
    one.add_argument("dest", metavar="DEST", type=path, help="a folder, or a file that ends with .tar; must not exist")
    one.add_argument("--store", type=path, metavar="DIR", help="what lies in this store, without asking the catalog")
    one.add_argument("--kind", metavar="KIND", help="sycl, …")
    one.add_argument("--model", metavar="NAME", help="what this model uses")
    one.add_argument("--driver", metavar="V", help="this version; V* for the beginning of one")
    one.add_argument("--device", metavar="TEXT", help="part of the device's name")
    one.add_argument("--recipes-only", action="store_true", help="no compiled programs, only what they are made from")
    one.add_argument("--made-here", action="store_true", help="only programs that this host compiled from recipes")
    one.add_argument(
        "--allow-switches", action="store_true", help="also where variables are set that change what is compiled"
    )
    one.add_argument("--with-names", action="store_true", help="put the models' names into the bundle")
    one.add_argument("--driver-root", type=path, metavar="DIR", help="the driver that compiled it, unpacked there")
    one.add_argument("--pretended", metavar="GPU", help="the GPU that this driver pretended, as for replay --device")
    _packs(one)
    one = verb("import", "take a bundle into the stores of this host", within, "bundle import")
    one.add_argument("source", metavar="BUNDLE", type=path, help="a folder or a .tar file")
    one.add_argument("--into", type=path, metavar="DIR", help="into a store of its own (default: the managed ones)")
    one.add_argument(
        "--binaries",
        choices=[each.value for each in Binaries],
        default=Binaries.TRUSTED.value,
        help="compiled programs: never, where a trusted key signed them and all fits (trusted), or that or nothing",
    )
    one.add_argument("-n", "--dry-run", action="store_true", help="only say what would be done")
    one.add_argument("--unattended", action="store_true", help="take nothing that no trusted key has signed")
    one = verb("merge", "make one bundle of several", within, "bundle merge")
    one.add_argument("sources", metavar="BUNDLE", type=path, nargs="+", help="folders or .tar files")
    one.add_argument("dest", metavar="DEST", type=path, help="as for export")
    _packs(one)
    one = verb("push", "copy a bundle into a registry", within, "bundle push")
    one.add_argument("source", metavar="BUNDLE", type=path, help="a folder or a .tar file")
    one.add_argument("reference", metavar="REF", help="HOST[:PORT]/REPOSITORY[:TAG] (default tag: latest)")
    one.add_argument(
        "--mount-from", default="", metavar="REPOSITORY", help="link what this repository of the registry has already"
    )
    one.add_argument("--if-changed", action="store_true", help="send nothing where the tag names this bundle already")
    _reaches(one, path, seconds)
    one = verb("pull", "copy a bundle from a registry", within, "bundle pull")
    one.add_argument("reference", metavar="REF", help="HOST[:PORT]/REPOSITORY[:TAG|@DIGEST] (default tag: latest)")
    one.add_argument(
        "dest", metavar="BUNDLE", type=path, help="a folder, or a file that ends with .tar; must not exist"
    )
    _reaches(one, path, seconds)
    verb("fetch", "copy the bundles that the configuration names (bundles.pull)", within, "bundle fetch")
    verb("send", "push what this host compiled to where the configuration says (bundles.push)", within, "bundle send")
    one = verb("keygen", "make a key to sign bundles with", within, "bundle keygen")
    one.add_argument("name", metavar="NAME", type=path, help="of the two files: NAME.key and NAME.pub")
    one = verb("inspect", "say what is in a bundle", within, "bundle inspect")
    one.add_argument("source", metavar="BUNDLE", type=path, help="a folder or a .tar file")
    one = verb("verify", "read all of a bundle, and say whether it is whole", within, "bundle verify")
    one.add_argument("source", metavar="BUNDLE", type=path, help="a folder or a .tar file")
    one = verb("diff", "compare two bundles by what is in them; 1 if they differ", within, "bundle diff")
    one.add_argument("first", metavar="A", type=path, help="a folder or a .tar file")
    one.add_argument("second", metavar="B", type=path, help="another one")


def replay_options(one: argparse.ArgumentParser, path: Callable[[str], Path]) -> argparse.ArgumentParser:
    """Say what ``replay`` takes for a bundle."""
    group = one.add_argument_group("without a daemon, from a bundle (docs/bundles.md)")
    group.add_argument("--bundle", type=path, metavar="BUNDLE", help="compile its recipes, into the store of --into")
    group.add_argument(
        "--shard", default="0/1", metavar="I/N", help="only part I of N, from 0; auto: as a system counts"
    )
    group.add_argument(
        "--on", metavar="URL", help="in parts, by the workers of a Dask cluster that share its files: dask://HOST:PORT"
    )
    group.add_argument("--keep-going", action="store_true", help="what a compiler refuses is no failure")
    return one


def _reaches(one: argparse.ArgumentParser, path: Callable[[str], Path], seconds: Callable[[str], float]) -> None:
    one.add_argument("--ca-file", type=path, metavar="FILE", help="trust the authorities in this file, too (PEM)")
    one.add_argument("--plain-http", action="store_true", help="without TLS: then no account is told but to this host")
    one.add_argument("--token-host", default="", metavar="HOST", help="this host may hear the account, to give a token")
    one.add_argument(
        "--patience", type=seconds, default=60.0, metavar="T", help="how long it may be silent (default: 1m)"
    )


def _packs(one: argparse.ArgumentParser) -> None:
    one.add_argument(
        "--compression", choices=[each.value for each in Compression], help="default: zstd if it is installed, or gzip"
    )
    one.add_argument(
        "--sign", type=values.name, metavar="KEY", help="sign it with the key in this file (XPUCACHED_SIGNING_KEY)"
    )


def came_from(
    one: argparse.ArgumentParser, one_of: Callable[[type[Origin]], Callable[[str], Origin]]
) -> argparse.ArgumentParser:
    """Say how entries are named by where they came from."""
    one.add_argument("--origin", type=one_of(Origin), metavar="ORIGIN", help="how it came about: imported, rebuilt, …")
    one.add_argument(
        "--bundle", type=values.name, metavar="DIGEST", help="came with this bundle, or with one that this key signed"
    )
    return one
