"""What `xpucachectl setup` puts in place for who installed with pip: units, man pages, completions.  Touches them only.

Packages of distributions bring the same files to their own places and need none of this.  First a plan is made, from
what is there; then it is carried out.  What we put somewhere is noted with its digest, so that a file which somebody
changed since is told from one of an earlier version: it is his, and stays.
"""

from __future__ import annotations

import os
import re
import stat
import sys
import sysconfig
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Final

from msgspec import Struct
from msgspec.structs import replace

from xpucached import sockets
from xpucached.cli import installed_files
from xpucached.errors import Conflict, Denied, DiskError
from xpucached.printing import quoted

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

_PACKAGE: Final = Path(__file__).resolve().parent.parent
_UNITS: Final = (".service", ".socket", ".path", ".timer", ".target", ".slice")
_PROGRAMS: Final = ("xpucached", "xpucachectl", "xpucached-watch")
_COMMAND: Final = re.compile(rf"^(Exec\w+=[-@:+!|]*)(?:/usr/bin/)?({'|'.join(_PROGRAMS)})(?=\s|$)", re.MULTILINE)
_UNREAD: Final = "it cannot be read now; to have it away, try again"
_PACKAGED: Final = "/usr/lib/systemd/system/xpucached.service"


class StepKind(StrEnum):
    """What a step does."""

    PUT = "put"  #: a file that is not there yet
    UPDATE = "update"  #: a file of ours, of another version
    SAME = "same"  #: nothing: it is there
    KEEP = "keep"  #: nothing: somebody changed the file, or it was never ours
    REMOVE = "remove"  #: a file of ours
    RUN = "run"  #: a command
    SKIP = "skip"  #: nothing: this installation lacks what it takes


class Step(Struct, frozen=True):
    """One step of setting up or of taking away."""

    verb: StepKind
    what: str  #: the file, or the command
    why: str = ""
    content: bytes = b""
    failed: str = ""  #: what went wrong, once it was done


class Plan(Struct, frozen=True):
    """All that is to be done, in order, and what is left to a person."""

    steps: tuple[Step, ...]
    after: tuple[str, ...]  #: commands and remarks for the person
    record: Path
    noted: Mapping[str, str]  #: what the record says afterwards: file to digest


class Place(Struct, frozen=True):
    """Where things go: for the host or a user, below a root that is not always ``/``."""

    user: bool
    root: Path
    configuration: Path
    data: Path

    @classmethod
    def of(cls, *, user: bool, root: Path | None, environ: Mapping[str, str]) -> Place:
        """Find out where things go.  Raises `Conflict` and `Denied` where they cannot."""
        base = root if root is not None else Path("/")
        if not user:
            return cls(user, base, base / "etc", base / "usr/local/share")
        if root is not None:
            raise Conflict("--root is for the host's service", hint="xpucachectl setup --system --root DIR")
        home = environ.get("HOME", "")
        if not home.startswith("/"):
            raise Denied("HOME does not say where your home directory is", hint="set HOME to an absolute path")

        def xdg(name: str, otherwise: str) -> Path:
            # The specification says that a relative value is to be ignored.
            value = environ.get(name, "")
            return Path(value) if value.startswith("/") else Path(home, otherwise)

        return cls(user, base, xdg("XDG_CONFIG_HOME", ".config"), xdg("XDG_DATA_HOME", ".local/share"))

    def target(self, name: str) -> Path | None:
        """Return where a packed file goes; None for one that is only an example, or not for this scope."""
        folder, _, file = name.rpartition("/")
        is_unit = file.endswith(_UNITS)
        if self.user:
            found = {"user": self.data / "systemd/user"} if is_unit else {}
        else:
            found = {
                "sysusers.d": self.configuration / "sysusers.d",
                "tmpfiles.d": self.configuration / "tmpfiles.d",
                "polkit": self.configuration / "polkit-1/rules.d",
                "udev": self.configuration / "udev/rules.d",
                "userdel-pre.d": self.configuration / "shadow-maint/userdel-pre.d",
            }
            if is_unit:
                # Below /etc they would hide what an administrator puts there with `systemctl edit`.
                found |= {
                    "": self.root / "usr/local/lib/systemd/system",
                    "user": self.root / "usr/local/lib/systemd/user",
                }
        found |= {
            "man": self.data / f"man/man{file[-1:]}",
            "completions/bash": self.data / "bash-completion/completions",
            "completions/zsh": self.data / "zsh/site-functions",
            "completions/fish": self.data / "fish/vendor_completions.d",
        }
        return found[folder] / file if folder in found else None

    @property
    def record(self) -> Path:
        """Where we note what we put in place."""
        return self.data / "xpucached/setup.json"


_ELSEWHERE: Final = "in the clone: python3 -m venv /opt/xpucached && /opt/xpucached/bin/pip install ."
"""How it is installed where services may run it: no index of packages has it."""


def programs() -> Path:
    """Return the folder with the commands of this installation.  Raises `Conflict` if they are not there."""
    folders = dict.fromkeys([Path(sys.executable).parent, Path(sysconfig.get_path("scripts"))])
    for folder in folders:
        if all(os.access(folder / name, os.X_OK) for name in _PROGRAMS):
            return folder
    raise Conflict(
        f"xpucached is not installed as a command beside {sys.executable}",
        hint=_ELSEWHERE,
    )


def packed() -> Mapping[str, bytes]:
    """Return every file that this installation brings for others: units by their names, man pages, completions.

    Raises `Conflict` if it brings none.
    """
    units = _PACKAGE / "units"
    # In a source tree the folder has not been moved into the package.
    units = units if units.is_dir() else _PACKAGE.parent / "systemd"
    found: dict[str, bytes] = {}
    for top in (units, _PACKAGE / "data" / "manual"):
        files = (path for path in sorted(top.rglob("*")) if path.is_file())
        found |= {path.relative_to(top).as_posix(): path.read_bytes() for path in files}
    if not any(name.endswith(_UNITS) for name in found):
        raise Conflict(
            "this xpucached came with a package of the distribution, which has put everything in place",
            hint="systemctl enable --now xpucached.service; or with --user, for yourself alone",
        )
    return found


def check(place: Place, bin_: Path, *, remove: bool) -> None:
    """See that it can work.  Raises `Denied` or `Conflict`."""
    if place.user:
        return
    if os.geteuid() != 0 and place.root == Path("/"):
        raise Denied(
            "only root can set up the host's service",
            hint="sudo xpucachectl setup --system; or for yourself alone: xpucachectl setup --user",
        )
    if remove:
        return
    if os.path.lexists(place.root / _PACKAGED.lstrip("/")):
        raise Conflict(
            f"{_PACKAGED} is there already: a package of the distribution has set everything up",
            hint="use that one, or remove the package first",
        )
    # Root's umask may have closed what pip put into an environment that is open itself.
    modules = (_PACKAGE, *_PACKAGE.parents) if place.root == Path("/") else ()
    closed = next((one for one in (bin_, *bin_.parents, *modules) if not one.stat().st_mode & stat.S_IXOTH), None)
    at_home = bin_.is_relative_to("/home") or bin_.is_relative_to("/root")
    if closed is not None or at_home:
        ours = sys.prefix != sys.base_prefix and not at_home and closed and closed.is_relative_to(sys.prefix)
        raise Conflict(
            f"the host's service cannot run {bin_}/xpucached: services do not see home directories"
            + (f", and {closed} is closed to other users" if closed is not None else ""),
            hint=f"chmod -R go+rX {quoted(sys.prefix)}" if ours else _ELSEWHERE,
        )
    foreign = _foreign(bin_) if place.root == Path("/") else None
    if foreign is not None:
        raise Conflict(
            f"{foreign} can be changed by others than root, and what is there would run as every user of this host",
            hint=f"as root, {_ELSEWHERE}",
        )


def _foreign(bin_: Path) -> Path | None:
    """Return what of a program somebody else could change: its commands, its interpreter, its modules, or their way."""
    programs_ = (bin_, *(bin_ / name for name in _PROGRAMS), Path(sys.executable), _PACKAGE, Path(os.__file__))
    ways = (way for one in programs_ for way in _ways(one))
    for step in dict.fromkeys(step for way in ways for step in (way, *way.parents)):
        found = step.lstat()
        shared = found.st_mode & (stat.S_IWOTH | stat.S_ISVTX) == stat.S_IWOTH and not stat.S_ISLNK(found.st_mode)
        # The groups of a system (staff may write to /usr/local) are root's business; those of people are not.
        if found.st_uid != 0 or shared or (found.st_mode & stat.S_IWGRP and sockets.is_of_people(found.st_gid)):
            return step
    return None


def _ways(path: Path) -> Iterator[Path]:
    """Yield a path, and each to which a link on the way leads: that may be another user's, wherever the last leads."""
    for _ in range(_MOST_LINKS + 1):
        yield path
        link = next((one for one in (*reversed(path.parents), path) if one.is_symlink()), None)
        if link is None:
            return
        path = link.parent / link.readlink() / path.relative_to(link)


_MOST_LINKS: Final = 40
"""As many as the kernel follows."""


# -- plans ----------------------------------------------------------------------------------------------------------


def plan(place: Place, bin_: Path, files: Mapping[str, bytes], *, running: bool) -> Plan:
    """Return what setting up takes; ``running`` is whether this host's systemd is to be told."""
    before = installed_files.noted(place.record)
    steps: list[Step] = []
    noted: dict[str, str] = {}
    wanted: set[str] = set()
    for name, content in files.items():
        target = place.target(name)
        if target is None:
            continue
        step = _put(target, _adapted(content, bin_), before)
        steps.append(step)
        wanted.add(step.what)
        if step.verb is not StepKind.KEEP:
            noted[step.what] = installed_files.digest(step.content)
        elif step.what in before:
            # Still known as one that we put there, so that who takes all away hears of it.
            noted[step.what] = before[step.what]
    if not any(name.startswith("man/") for name in files):
        steps.append(Step(StepKind.SKIP, "man pages", "this build has none; make dist packs them"))
    for path in sorted(before.keys() - wanted):
        # An earlier version brought it.
        left = _taken(Path(path), before)
        steps += [left] if left is not None else []
        noted |= {path: before[path]} if left is not None and left.why == _UNREAD else {}
    changed = any(step.verb in {StepKind.PUT, StepKind.UPDATE, StepKind.REMOVE} for step in steps)
    if running and changed:
        steps += [Step(StepKind.RUN, command) for command in _commands(place, steps)]
    return Plan(tuple(steps), _next(place, bin_, running=running), place.record, noted)


def removal(place: Place, *, running: bool) -> Plan:
    """Return what taking everything away takes."""
    before = installed_files.noted(place.record)
    steps = [step for path in sorted(before) if (step := _taken(Path(path), before)) is not None]
    noted = {one.what: before[one.what] for one in steps if one.why == _UNREAD}
    manager, of = ("systemctl --user", "user") if place.user else ("systemctl", "system")
    # What the host has put there for its users' managers each of them stops.
    units = sorted(path.name for path in map(Path, before) if path.suffix in _UNITS and path.parent.name == of)
    if running and units:
        plain = [unit for unit in units if "@." not in unit]
        first = [f"{manager} disable --now {' '.join(plain)}"] if plain else []
        first += [f"{manager} stop {unit.replace('@.', '@*.')}" for unit in units if "@." in unit]
        steps = [
            *(Step(StepKind.RUN, command) for command in first),
            *steps,
            Step(StepKind.RUN, f"{manager} daemon-reload"),
        ]
    kept = (
        ("~/.config/xpucached", "~/.local/state/xpucached", "~/.cache/xpucached")
        if place.user
        else ("/etc/xpucached", "/var/lib/xpucached", "/var/lib/xpucached-worker", "/var/cache/xpucached-bundles")
    )
    after = (f"# configuration, catalog and caches stay; to be rid of them: rm -rf {' '.join(kept)}",)
    return Plan(tuple(steps), after if before else ("# nothing was set up from here",), place.record, noted)


def _adapted(content: bytes, bin_: Path) -> bytes:
    """Let the commands of a unit be those of this installation."""
    folder = str(bin_).replace("%", "%%")
    mark = '"' if re.search(r"\s", folder) else ""
    return _COMMAND.sub(lambda match: f"{match[1]}{mark}{folder}/{match[2]}{mark}", content.decode()).encode()


def _put(target: Path, content: bytes, before: Mapping[str, str]) -> Step:
    there = installed_files.read(target)
    if there is None and not os.path.lexists(target):
        return Step(StepKind.PUT, str(target), content=content)
    if there == content:
        return Step(StepKind.SAME, str(target), content=content)
    if there is not None and installed_files.is_ours(there, before.get(str(target))):
        return Step(StepKind.UPDATE, str(target), content=content)
    why = "it was changed since" if str(target) in before else "it is not ours"
    return Step(StepKind.KEEP, str(target), f"{why}; to have ours, move it away and set up again", content)


def _taken(target: Path, before: Mapping[str, str]) -> Step | None:
    there = installed_files.read(target)
    if there is None:
        try:
            found = installed_files.is_there(target)
        except OSError:
            return Step(StepKind.KEEP, str(target), _UNREAD)
        if found is None:
            return None
        if stat.S_ISREG(found.st_mode):
            return Step(StepKind.KEEP, str(target), _UNREAD)
    elif installed_files.is_ours(there, before.get(str(target))):
        return Step(StepKind.REMOVE, str(target))
    return Step(StepKind.KEEP, str(target), "it was changed since it was put there")


def _commands(place: Place, steps: Sequence[Step]) -> Iterator[str]:
    if place.user:
        yield "systemctl --user daemon-reload"
        return
    files = [step.what for step in steps if step.verb is not StepKind.REMOVE]
    yield from (f"systemd-sysusers {path}" for path in files if Path(path).parent.name == "sysusers.d")
    yield from (f"systemd-tmpfiles --create {path}" for path in files if Path(path).parent.name == "tmpfiles.d")
    # Without udev, as in most containers, there is nobody who would have to know.
    if any(Path(path).parent.match("udev/rules.d") for path in files) and Path("/run/udev/control").exists():
        yield "udevadm control --reload"
    yield "systemctl daemon-reload"


def _next(place: Place, bin_: Path, *, running: bool) -> tuple[str, ...]:
    client = bin_ / "xpucachectl"
    if place.user:
        return ("systemctl --user enable --now xpucached.service", f"{client} status")
    if not running:
        return ("systemd-sysusers && systemd-tmpfiles --create", "systemctl enable xpucached.service")
    return ("systemctl enable --now xpucached.service", f"{client} --system status")


def carry_out(plan_: Plan) -> Plan:
    """Do what a plan says; gives it with what went wrong.  The record is written even then, as far as it is true."""
    done: list[Step] = []
    noted = dict(plan_.noted)
    # Before the files: who dies in between has a record of too much, which is harmless, and not of too little.
    earlier = installed_files.noted(plan_.record)
    if plan_.noted:
        _record(plan_.record, installed_files.either(earlier, plan_.noted))
    for step in plan_.steps:
        failed = ""
        try:
            match step.verb:
                case StepKind.PUT | StepKind.UPDATE:
                    installed_files.write(Path(step.what), step.content)
                case StepKind.REMOVE:
                    Path(step.what).unlink(missing_ok=True)
                case StepKind.RUN:
                    failed = installed_files.run(step.what)
                case StepKind.KEEP if step.why == _UNREAD:
                    failed = step.why
        except OSError as error:
            failed = error.strerror or str(error)
        if failed and step.verb in {StepKind.PUT, StepKind.UPDATE, StepKind.REMOVE}:
            noted.pop(step.what, None)
            noted |= {step.what: earlier[step.what]} if step.what in earlier else {}
        done.append(replace(step, failed=failed))
    if noted or earlier:
        _record(plan_.record, noted)
    return replace(plan_, steps=tuple(done))


def _record(record: Path, noted: Mapping[str, str]) -> None:
    """Note what is there of ours; nothing: it goes.  Raises `DiskError`."""
    try:
        if noted:
            installed_files.write(record, installed_files.spelled(noted))
            return
        record.unlink(missing_ok=True)
        if not os.listdir(record.parent):
            record.parent.rmdir()
    except OSError as error:
        message = f"{record}, which says what was set up, cannot be written: {error.strerror or error}"
        raise DiskError(message, hint="see HOME and XDG_DATA_HOME") from error
