"""Door: `xpucachectl setup`, the one command that asks no daemon: it puts in place what one is started by."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from xpucached import codec
from xpucached.api.endpoints import VERSION
from xpucached.cli import installation
from xpucached.cli.installation import StepKind
from xpucached.errors import RunFailed
from xpucached.printing import plain

if TYPE_CHECKING:
    from argparse import Namespace

    from xpucached.messages import Json


def run(options: Namespace) -> int:
    """Set up, or take away, and tell each step; gives the exit status."""
    user = options.scope != "system" if options.scope else os.geteuid() != 0 and options.root is None
    place = installation.Place.of(user=user, root=options.root, environ=os.environ)
    running = options.root is None and Path("/run/systemd/system").is_dir()
    if options.remove:
        installation.check(place, Path(), remove=True)
        plan = installation.removal(place, running=running)
    else:
        files, folder = installation.packed(), installation.programs()
        installation.check(place, folder, remove=False)
        plan = installation.plan(place, folder, files, running=running)
    if not options.dry_run:
        if not user:
            os.umask(0o022)  # all users must get to what the host is given, whatever root's own umask says
        plan = installation.carry_out(plan)
    if options.json:
        _dump(plan, user=user, dry_run=options.dry_run)
    elif not options.quiet:
        _tell(plan, dry_run=options.dry_run)
    return RunFailed.exit if any(step.failed for step in plan.steps) else 0


def _dump(plan: installation.Plan, *, user: bool, dry_run: bool) -> None:
    steps: list[Json] = [
        {"step": str(one.verb), "what": one.what, "why": one.why, "failed": one.failed} for one in plan.steps
    ]
    data: dict[str, Json] = {
        "scope": "user" if user else "system",
        "dry_run": dry_run,
        "steps": steps,
        "next": list(plan.after),
    }
    print(codec.dumps({"api": VERSION, "data": data}).decode("ascii"))


def _tell(plan: installation.Plan, *, dry_run: bool) -> None:
    same = sum(one.verb is StepKind.SAME for one in plan.steps)
    for one in plan.steps:
        if one.verb is not StepKind.SAME:
            why = plain(one.failed or one.why)
            print(f"{'FAILED ' if one.failed else ''}{one.verb:6} {plain(one.what)}{f' ({why})' if why else ''}")
    if same:
        print(f"{same} files are in place already")
    if dry_run:
        print("nothing was done: this was a dry run")
    elif plan.after:
        print("next:", *(f"  {line}" for line in plan.after), sep="\n")
