"""Door: what may be typed behind xpucachectl.  Reads the command line only."""

from __future__ import annotations

import argparse
import functools
from typing import TYPE_CHECKING, Final

from xpucached import __version__, printing
from xpucached.cli import bundle_options, examples, fleet_options, habits, looking_options, narrowing, workload_options
from xpucached.cli import option_values as values
from xpucached.cli.command_parser import CommandParser, reader_of
from xpucached.domain.plans import EvictReason
from xpucached.domain.stores import EntryState
from xpucached.errors import RequestError
from xpucached.render.variables import Syntax

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


_ADD: Final = "xpucachectl model add"
_STARTERS: Final = {_ADD, "xpucachectl run", "xpucachectl trace"}
"""What stands behind these may be a program's."""


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Read a command line.  Raises `RequestError` for one that cannot be meant."""
    # argparse has changed its mind about `--` more than once; what stands behind it is none of its business.
    argv = list(argv)
    command: list[str] = []
    if "--" in argv:
        split = argv.index("--")
        argv, command = argv[:split], argv[split + 1 :]
    argv = habits.understood(argv)
    parser = _kept()
    try:
        options, extra = parser.parse_known_args(argv)
    except RequestError:
        # What stands behind an option that there is not was taken for something else.
        whose = reader_of(parser, argv)
        name = None if whose.prog in _STARTERS else whose.unknown_option(argv)
        if name is None:
            raise
        raise whose.no_option(name) from None
    options.command = command
    narrowing.settle(options)
    if extra:
        if options.verb == "model add" and not extra[0].startswith("-"):
            raise RequestError(
                "the model's command stands behind --", hint=f"{_ADD} {options.name} -- {printing.command(extra)}"
            )
        first = getattr(options, "model", None) if options.verb in {"run", "trace"} else None
        # A word before the program's is a model, unless there is a program of that name.
        from shutil import which  # noqa: PLC0415 - what it loads for archives takes longer than to parse a command line

        is_program = bool(first and which(first))
        if options.verb in {"run", "trace"} and not command and (is_program or not extra[0].startswith("-")):
            # Options of the program that are ours, too, were taken for ours.
            at = argv.index(first if first and is_program else extra[0], argv.index(options.verb) + 1)
            hint = printing.command(["xpucachectl", *argv[:at], "--", *argv[at:]])
            raise RequestError("the program stands behind --", hint=hint)
        whose = reader_of(parser, argv)
        if (name := whose.unknown_option(extra)) is not None:
            raise whose.no_option(name)
        raise RequestError(f"not understood: {' '.join(extra)}", hint=f"{whose.prog} --help")
    if options.verb == "prewarm":
        # A unit or a script hands a name on that it did not choose: behind -- it is never an option.
        options.models += command
    elif command and options.verb not in {"model add", "run", "trace"}:
        message = "only model add, run and trace take a command behind --, and prewarm names"
        raise RequestError(message, hint="xpucachectl --help")
    return options


def _parser() -> CommandParser:
    parser = CommandParser(
        prog="xpucachectl", description="Ask and tell the daemon that keeps SYCL kernel caches warm."
    )
    parser.add_argument("--version", action="version", version=f"xpucachectl {__version__}")
    _common(parser, first=True)
    common = CommandParser(add_help=False)
    _common(common, first=False)
    verbs = parser.add_subparsers(
        title="commands", dest="verb_", metavar="COMMAND", required=True, parser_class=CommandParser
    )

    def verb(
        name: str, help_: str, within: argparse._SubParsersAction[CommandParser] = verbs, full: str = ""
    ) -> CommandParser:
        made = within.add_parser(name, help=help_, description=f"{help_[0].upper()}{help_[1:]}.", parents=[common])
        made.epilog, made.formatter_class = examples.epilog(full or name), argparse.RawDescriptionHelpFormatter
        made.set_defaults(verb=full or name)
        return made

    _status(verb("status", "tell whether this host is warm"))
    _ls(verb("ls", "list entries"))
    verb("show", "show entries").add_argument(
        "ref", nargs="+", metavar="REF", type=values.ref, help="as ls shows it; its beginning is enough"
    )
    narrowing.declare(verb("stores", "list stores"), "stores")
    verb("df", "show how much room caches take, by driver and by model, and what of it could go")
    verb("devices", "show devices and drivers")
    looking_options.add_commands(verb)
    _model(verb("model", "register, list, show and remove models"), verb)
    _jobs(verb)
    one = verb("driver-changed", "say that the driver may have changed: whom it concerns looks again")
    how = one.add_mutually_exclusive_group()
    how.add_argument(
        "--no-wait", action="store_true", help="never fail: for hooks of package managers, units and timers"
    )
    how.add_argument(
        "--wait", action="store_true", help="until all is as warm as it will be; 0 warm, 1 not all, 2 failed"
    )
    one.add_argument(
        "--timeout",
        type=values.duration,
        default=600.0,
        metavar="T",
        help="wait at most so long (10m)",
    )
    _events(verb("events", "show what happened"))
    one = verb("runs", "list prewarming runs")
    one.add_argument("model", nargs="?", metavar="MODEL", help="only this model's; 'llama*' for several")
    one.add_argument("--limit", type=values.positive, default=20, metavar="N", help="at most so many (20)")
    narrowing.declare(one, "runs")
    one = verb("why", "tell why a model is cold or slow, and what mends it")
    one.add_argument("model", nargs="+", metavar="MODEL")
    one.add_argument("--programs", action="store_true", help="and which of its libraries' kernels are compiled")
    _programs(verb)
    one = verb("inspect", "tell which kernels of a wheel or environment are compiled already, and for which GPU")
    one.add_argument("target", metavar="TARGET", help="a file, a wheel, a folder (a virtual environment), or a model")
    one.add_argument(
        "--device",
        action="append",
        default=[],
        metavar="GPU",
        help="B580, bmg-g21, a PCI id, cpu (default: those here); repeatable",
    )
    one = verb("env", "print the variables that make programs use the cache (of one program alone: run sets them)")
    one.add_argument("model", nargs="?", metavar="MODEL", help="of this model's store (default: the managed store)")
    syntaxes = one.add_mutually_exclusive_group()
    for syntax in Syntax:
        syntaxes.add_argument(
            *(f"--{name}" for name in (syntax, *_ALSO.get(syntax, ()))),
            dest="syntax",
            action="store_const",
            const=syntax,
            default=Syntax.SHELL,
            help=_SYNTAXES[syntax],
        )
    _other_hosts(verb)
    _setup(verb("setup", "put units, man pages and completions in place after pip or pipx installed it"))
    one = verb("completion", "print what makes a shell complete these commands")
    one.add_argument("shell", choices=("bash", "zsh", "fish"), metavar="SHELL", help="bash, zsh, fish")
    config = verb("config", "show the settings in effect").add_subparsers(
        dest="verb_", metavar="COMMAND", required=True, parser_class=CommandParser
    )
    verb("show", "show the settings in effect", config, "config show")
    verb("version", "show the versions of client and daemon")
    return parser


_kept: Final = functools.cache(_parser)
"""To declare all commands takes longer than most of them: who reads several command lines does it once."""


_CHECK: Final = "one line and an exit status for monitoring: 0 warm, 1 not yet, 2 failed, 3 no device or no daemon"
_ALSO: Final = {Syntax.DOCKER: ("podman",)}
_SYNTAXES: Final = {
    Syntax.SHELL: "for eval in a shell (the default)",
    Syntax.SYSTEMD: "lines for a unit's [Service]",
    Syntax.DOCKER: "for docker run and podman run --env-file",
    Syntax.ENVIRONMENT: "for a file in ~/.config/environment.d",
}


def _common(parser: argparse.ArgumentParser, *, first: bool) -> None:
    # Accepted on both sides of the command; behind it, an option that is not given must not undo one before it.
    def default(value: object) -> object:
        return value if first else argparse.SUPPRESS

    group = parser.add_argument_group("common options")
    group.add_argument(
        "--socket",
        type=values.path,
        metavar="PATH",
        default=default(None),
        help="the daemon's socket (XPUCACHED_SOCKET)",
    )
    # As with systemctl the last one counts: a group of alternatives inside a group loses its place in the help.
    group.add_argument(
        "--user", dest="scope", action="store_const", const="user", default=default(None), help="ask the user's daemon"
    )
    group.add_argument(
        "--system", dest="scope", action="store_const", const="system", default=default(None), help="ask the system's"
    )
    group.add_argument(
        "--of",
        metavar="USER",
        type=values.name,
        default=default(None),
        help="ask that user's worker, as root or an administrator",
    )
    group.add_argument("--json", action="store_true", default=default(value=False), help="print the answer as it came")
    group.add_argument("-q", "--quiet", action="store_true", default=default(value=False), help="print only names")
    group.add_argument(
        "--no-trunc", action="store_true", default=default(value=False), help="whole tables on a narrow terminal, too"
    )
    group.add_argument(
        "--utc", action="store_true", default=default(value=False), help="times in UTC (default: those of this place)"
    )
    group.add_argument("--no-color", action="store_true", default=default(value=False), help="never use colours")


def _status(one: argparse.ArgumentParser) -> None:
    one.add_argument("--check", action="store_true", help=_CHECK)
    one.add_argument("--wait", action="store_true", help="until a daemon answers and has looked at everything once")
    one.add_argument("--timeout", type=values.duration, default=300.0, metavar="T", help="wait at most so long (5m)")


def _events(one: argparse.ArgumentParser) -> None:
    one.add_argument("-f", "--follow", action="store_true", help="and go on with what happens")
    one.add_argument("patterns", nargs="*", metavar="PATTERN", help="only of such topics: 'model-*'")
    one.add_argument(
        "--since", type=values.moment, default=0, metavar="N", help="after event N; or of the last 7d, 12h"
    )
    one.add_argument("--limit", type=values.positive, metavar="N", help="at most so many, the newest (default: all)")


def _ls(one: argparse.ArgumentParser) -> None:
    one.add_argument(
        "patterns", nargs="*", metavar="PATTERN", help="only those with such kernels, models or refs: 'gemm*'"
    )
    one.add_argument("--kind", metavar="KIND", help="sycl, …")
    one.add_argument("--driver", metavar="V", help="this version; V* for the beginning of one; current")
    one.add_argument("--arch", dest="architecture", metavar="ARCH", help="such as bmg-g21, B580 or 'Meteor Lake'")
    one.add_argument("--device", metavar="TEXT", help="part of the device's name")
    one.add_argument("--model", metavar="NAME", help="entries that this model uses")
    one.add_argument("--store", type=values.path, metavar="PATH", help="entries in this store")
    one.add_argument("--state", type=values.one_of(EntryState), metavar="STATE", help=", ".join(EntryState))
    one.add_argument("--defect", metavar="DEFECT", help="such as bin-empty")
    bundle_options.came_from(one, values.one_of)
    one.add_argument("--kernel", metavar="TEXT", help="part of a kernel's name")
    one.add_argument(
        "--size", action="append", default=[], type=values.bound, metavar="BOUND", help="such as '>1MB', '<=10k'"
    )
    one.add_argument("--unused", type=values.duration, metavar="AGE", help="for at least so long: 7d, 12h")
    one.add_argument("--since", type=values.duration, metavar="AGE", help="first seen in the last 7d, 12h, …")
    one.add_argument("--sort", choices=values.ENTRY_KEYS, metavar="KEY", help=", ".join(values.ENTRY_KEYS))
    one.add_argument("--limit", type=values.positive, metavar="N", help="at most so many (default: all)")


def _model(parser: CommandParser, verb: Callable[..., CommandParser]) -> None:
    models = parser.add_subparsers(dest="verb_", metavar="COMMAND", required=True, parser_class=CommandParser)
    one = verb("add", "register a model", models, "model add")
    one.usage = f"{_ADD} NAME [options] -- COMMAND…"
    one.add_argument("name", metavar="NAME")
    one.add_argument("--directory", type=values.path, metavar="D", help="where the command runs (default: here)")
    one.add_argument(
        "--env", action="append", default=[], metavar="K[=V]", help="a variable; without =V as it is here; repeatable"
    )
    one.add_argument("--timeout", type=values.duration, default=1800.0, metavar="T", help="default: 30m")
    one.add_argument("--store", metavar="PATH", help="where it caches; 'default' is the managed store")
    one.add_argument(
        "--priority", type=values.number, default=50, metavar="N", help="0 to 100, higher is warmed earlier"
    )
    one.add_argument("--pinned", action="store_true", help="never evict what it needs")
    one.add_argument("--before", action="append", default=[], metavar="UNIT", help="a unit that serves it; repeatable")
    which = one.add_mutually_exclusive_group()
    which.add_argument("--replace", action="store_true", help="even if the name is taken")
    which.add_argument(
        "--if-changed", action="store_true", help="change it if something is another than it was: for scripts"
    )
    one.add_argument("--prewarm", action="store_true", help="warm it now, and wait for it")
    workload_options.add_options(one)
    narrowing.declare(verb("list", "list models", models, "model list"), "model list")
    verb("show", "show models", models, "model show").add_argument("name", nargs="+", metavar="NAME")
    verb("history", "show models' figures over their last runs", models, "model history").add_argument(
        "name", nargs="+", metavar="NAME"
    )
    one = verb("remove", "forget models; their entries stay until they are evicted", models, "model remove")
    one.add_argument("name", nargs="+", metavar="NAME")
    one.add_argument("-n", "--dry-run", action="store_true", help="only say what would go")
    one.add_argument(
        "--caches", action="store_true", help="and what --cache or a variable of theirs names, if unshared"
    )


def _jobs(verb: Callable[..., CommandParser]) -> None:
    one = verb("prewarm", "warm models; without a name those that need it")
    one.add_argument("models", nargs="*", metavar="MODEL", help="only these")
    which = one.add_mutually_exclusive_group()
    which.add_argument("--all", action="store_true", help="every model")
    which.add_argument("--stale", action="store_true", help="every model that needs it")
    one.add_argument("--force", action="store_true", help="even what is warm")
    one.add_argument("--timeout", type=values.duration, metavar="T", help="wait at most so long; the daemon goes on")
    _waits(one)
    one = verb("evict", "evict what the policy lets go")
    one.add_argument("refs", nargs="*", type=values.ref, metavar="REF", help="only these entries")
    one.add_argument("-n", "--dry-run", action="store_true", help="only say what would go")
    one.add_argument(
        "--reason",
        action="append",
        default=[],
        type=values.one_of(EvictReason),
        metavar="R",
        help=", ".join(EvictReason),
    )
    one.add_argument("--plan", type=values.ref, metavar="PLAN", help="exactly what a dry run showed, or nothing")
    _waits(bundle_options.came_from(one, values.one_of))
    _trash(verb)
    one = verb("verify", "read everything again and say what is wrong")
    one.add_argument("stores", nargs="*", type=values.path, metavar="PATH", help="only these stores")
    one.add_argument("--fix", action="store_true", help="mend what can be mended without loss, quarantine the rest")
    one.add_argument(
        "--deep", action="store_true", help="compile each entry again and compare, where its driver is here"
    )
    _waits(one)
    one = verb("doctor", "say what makes programs hang or fail here, and what to do")
    one.add_argument("--fix", action="store_true", help="clear what can be cleared")
    _waits(one)
    one = verb("replay", "rebuild entries for the present driver, without the models")
    one.add_argument("-n", "--dry-run", action="store_true", help="only say what would be rebuilt")
    one.add_argument(
        "--store", action="append", default=[], type=values.path, metavar="PATH", help="only in this store"
    )
    one.add_argument("--model", action="append", default=[], metavar="MODEL", help="only what this model uses")
    one.add_argument("--to", metavar="FINGERPRINT", help="only for this environment")
    one.add_argument(
        "--driver-root", type=values.path, metavar="DIR", help="for a driver unpacked there, not yet installed"
    )
    one.add_argument("--device", metavar="GPU", help="for a GPU that is not here: A770, bmg-g21, or a PCI id")
    one.add_argument("--into", type=values.path, metavar="DIR", help="put what is rebuilt into a store of its own")
    one.add_argument(
        "--driver-cache", type=values.path, metavar="DIR", help="where the GPU driver keeps its cache meanwhile"
    )
    _waits(bundle_options.replay_options(one, values.path))
    one = verb("scan", "look at the stores again")
    one.add_argument("stores", nargs="*", type=values.path, metavar="PATH", help="only these stores")
    one.add_argument("--full", action="store_true", help="read even what seems unchanged")
    _waits(one)
    one = verb("jobs", "list jobs, or show or cancel one")
    which = one.add_mutually_exclusive_group()
    which.add_argument(
        "id", nargs="?", metavar="ID", help="show this one, with what came of it; 'prewarm*' for all of such kinds"
    )
    which.add_argument("--cancel", metavar="ID", help="end this one")
    narrowing.declare(one, "jobs")


def _trash(verb: Callable[..., CommandParser]) -> None:
    trash = verb("trash", "list, restore and empty what was evicted").add_subparsers(
        dest="verb_", metavar="COMMAND", required=True, parser_class=CommandParser
    )
    one = verb("list", "list what was evicted and can come back, and what is in quarantine", trash, "trash list")
    narrowing.declare(one, "trash list")
    one = verb("restore", "bring entries back", trash, "trash restore")
    one.add_argument(
        "refs",
        nargs="*",
        type=values.ref,
        metavar="REF",
        help="as evict or trash list shows it; its beginning is enough",
    )
    one.add_argument("--all", action="store_true", help="everything that is whole")
    _waits(one)
    one = verb("empty", "let go for good", trash, "trash empty")
    one.add_argument("refs", nargs="*", type=values.ref, metavar="REF", help="only these")
    one.add_argument("-y", "--yes", action="store_true", help="do not ask")
    _waits(one)


def _programs(verb: Callable[..., CommandParser]) -> None:
    one = verb("run", "run a program with the variables that make it find what was warmed")
    one.usage = "xpucachectl run [MODEL] [options] -- COMMAND…"
    one.add_argument("model", nargs="?", metavar="MODEL", help="with this model's (default: the managed store's)")
    one = verb("trace", "run a program as it is, and tell how much of its time was compilation, and what was kept")
    one.usage = "xpucachectl trace [options] -- COMMAND…"
    one.add_argument("-o", "--output", type=values.path, metavar="FILE", help="where to tell it (default: stderr)")


def _other_hosts(verb: Callable[..., CommandParser]) -> None:
    one = verb("bundle", "take kernels to other hosts: export, look at, compare")
    bundle_options.add(one, verb, values.path, values.duration)
    fleet_options.add(verb, values.path)


def _setup(one: argparse.ArgumentParser) -> None:
    one.add_argument("-n", "--dry-run", action="store_true", help="only say what would be done")
    one.add_argument("--remove", action="store_true", help="take away what was put in place")
    one.add_argument(
        "--root", type=values.path, metavar="DIR", help="below this directory, as for an image; runs nothing"
    )


def _waits(one: argparse.ArgumentParser) -> None:
    one.add_argument("--wait", action=argparse.BooleanOptionalAction, default=True, help="until it is done")
