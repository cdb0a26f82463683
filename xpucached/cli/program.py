"""Door: the whole of xpucachectl, from a command line to an exit status."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from typing import TYPE_CHECKING, Final, TextIO, cast

from xpucached.cli import arguments, habits
from xpucached.errors import Denied, DiskError, RequestError, XpucachedError
from xpucached.printing import Clean, plain
from xpucached.streams import arriving

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Sequence

    from xpucached.messages import Json

# As a shell reports a program that a signal ended: 128 and the signal's number.
_INTERRUPTED = 130


def main(argv: Sequence[str]) -> int:
    """Run one command line; gives the exit status."""
    try:
        with arriving():
            return _answered(argv)
    except DiskError as error:
        print(f"xpucachectl: {error.message}", file=sys.stderr)
        return error.exit


def _answered(argv: Sequence[str]) -> int:
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A terminal that knows only ASCII still gets an answer.
            stream.reconfigure(errors="backslashreplace")
    out, err = cast("tuple[TextIO, TextIO]", (Clean(sys.stdout), Clean(sys.stderr)))
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        bare = habits.is_bare(argv)
        status = _run([*argv, "status"] if bare else argv)
        if bare and "--json" not in argv:
            print(_HELP)
    return status


_HELP: Final = """
All commands: xpucachectl --help    One of them: xpucachectl COMMAND --help"""


def _run(argv: Sequence[str]) -> int:
    options: Namespace | None = None
    # What stands behind -- is another program's.
    given = argv[: argv.index("--")] if "--" in argv else argv
    try:
        options = arguments.parse(argv)
        status = _done(options)
    except XpucachedError as error:
        if options is not None and getattr(options, "no_wait", False):
            # A package manager must not stop because we are not there.
            print(f"xpucachectl: {plain(error.message)}", file=sys.stderr)
            return 0
        check = options is not None and options.verb == "status" and options.check
        return _refused(_hinted(error, options, argv), check=check, as_json="--json" in given)
    except FileNotFoundError:
        if not _is_nowhere():
            raise
        gone = DiskError("the directory in which this was started is gone", hint="go to one that is there: cd")
        return _refused(gone, check=False, as_json="--json" in given)
    except KeyboardInterrupt:
        return _INTERRUPTED
    return status


def _is_nowhere() -> bool:
    try:
        os.getcwd()  # noqa: PTH109 - only whether it is there
    except FileNotFoundError:
        return True
    return False


def _done(options: Namespace) -> int:
    of_bundles = options.verb.startswith("bundle ") or (options.verb == "replay" and options.bundle is not None)
    if options.of and (of_bundles or options.verb in {"run", "trace"}):
        what = "works with files of yours" if of_bundles else "starts a program of yours"
        message = f"{options.verb} {what}, and --of names another user"
        raise RequestError(message, hint="leave out --of, or run it as that user")
    if options.verb == "inspect":
        from xpucached.cli import inspecting  # noqa: PLC0415 - no other command reads programs

        return inspecting.run(options)
    if options.verb == "completion":
        from xpucached.cli import completion  # noqa: PLC0415 - as above

        return completion.run(options)
    if of_bundles:
        from xpucached.cli import bundles  # noqa: PLC0415 - no other command waits for what it loads

        return bundles.run(options)
    if options.verb in {"fingerprint", "fleet diff"}:
        from xpucached.cli import fleet  # noqa: PLC0415 - as above

        return fleet.run(options)
    if options.verb == "trace":
        from xpucached.cli import tracing  # noqa: PLC0415 - no other command loads the kinds

        return tracing.run(options)
    if options.verb == "setup":
        from xpucached.cli import setup  # noqa: PLC0415 - it asks nobody, and nobody else waits for what it loads

        return setup.run(options)
    if options.verb == "run":
        from xpucached.cli import running  # noqa: PLC0415 - it does without an answer

        return running.run(options)
    from xpucached.cli import commands  # noqa: PLC0415 - who asks for help waits for none of it

    return commands.run(options)


def _hinted(error: XpucachedError, options: Namespace | None, argv: Sequence[str]) -> XpucachedError:
    """Return a refusal whose hint works as it is typed by the person who reads it."""
    if options is None:
        return error
    from xpucached.cli import hints  # noqa: PLC0415 - as above

    hint = hints.aimed(error.hint, hints.flags(options), os.environ)
    if isinstance(error, Denied) and options.of and os.geteuid() != 0:
        hint = f"{hint}; {hints.as_root(argv)}" if hint else hints.as_root(argv)
    error.hint = hint
    return error


def _refused(error: XpucachedError, *, check: bool, as_json: bool) -> int:
    status = error.exit
    if check:
        from xpucached.domain.checks import unanswered  # noqa: PLC0415 - as above
        from xpucached.render.status import monitoring  # noqa: PLC0415 - as above

        # Monitoring knows four answers, and "nobody there" is the fourth.
        silent = unanswered(error.message)
        status = silent.level
        if not as_json:
            print(monitoring(silent))
            return status
    if as_json:
        from xpucached import codec  # noqa: PLC0415 - as above
        from xpucached.api.endpoints import VERSION  # noqa: PLC0415 - as above

        body: dict[str, Json] = {"code": error.code, "message": error.message, "hint": error.hint}
        print(codec.dumps({"api": VERSION, "error": body}).decode("ascii"))
        return status
    print(f"xpucachectl: {plain(error.message)}", file=sys.stderr)
    if error.hint:
        print(f"hint: {plain(error.hint)}", file=sys.stderr)
    return error.exit
