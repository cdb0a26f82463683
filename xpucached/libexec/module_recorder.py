"""Write down which files a Python runs code of, save Python's own, and where packages lie that it runs code of.

A copy of this is ``sitecustomize.py`` in a directory that `xpucached.processes.module_record` puts first into
``PYTHONPATH`` for a model's processes: each Python among them starts with it, whatever started that, save those that
get another such variable, or look at none, or at no site (``-I``, ``-E``, ``-S``).  The program must not notice:
``sys.path``, what it has open, and a ``sitecustomize`` of its own are as they would be.  It starts with Pythons from
2.7 on, and sees something from 3.8 on.
"""

import os
import posix
import sys
from os.path import normpath
from stat import S_ISREG

# A program may put others in their places, as tests do; what is bound here stays.
_open, _read, _write, _close = posix.open, posix.read, posix.write, posix.close
_stat, _fstat, _cwd = posix.stat, posix.fstat, posix.getcwd

_PLACE = os.path.dirname(os.path.abspath(__file__))
_MORE = _PLACE + "/more"  # what a script adds to is this part of ``PYTHONPATH``, where that was not set
_RECORD = os.path.join(_PLACE, "record")
_MOST = 4000  # files of one process
_LARGEST = 512 << 10  # bytes of the record; `xpucached.processes.module_record` reads no more
_NAMED = {"exec": 0, "import": 1, "ctypes.dlopen": 0}  # events that name code or a library, and where they do
_ELSEWHERE = "/site-packages/", "/dist-packages/"
_STANDARD = tuple(os.path.dirname(path) + "/" for path in (os.__file__, os.path.realpath(os.__file__)))

_seen = set()  # type: set[str]


def _hook(event, arguments):
    # type: (str, tuple[object, ...]) -> None
    # It is called for all that Python does, and what it raises would end that.
    at = _NAMED.get(event)
    # A program may say anything of its own.
    if at is None or len(arguments) <= at:
        return
    name = arguments[at]
    if event == "exec":
        name = getattr(name, "co_filename", None)
    elif isinstance(name, str) and "/" not in name:
        # Of a module that is none the file is not said.
        return
    if not isinstance(name, str) or name in _seen or name.startswith("<") or len(_seen) >= _MOST:
        return
    place = _site(name) or name
    if not name.startswith(_STANDARD) and place not in _seen:
        _seen.update((name, place))
        try:
            _note(name)
        except Exception:
            pass


def _site(name):
    # type: (str) -> str
    """Return where installed packages lie of which a file is part: of these the first alone is written down."""
    return next((name.rpartition(part)[0] + part for part in _ELSEWHERE if part in name), "")


def _note(name):
    # type: (str) -> None
    path = normpath(name if name.startswith("/") else _cwd() + "/" + name)
    mode = _mode(path)
    while not mode and path != "/":
        path = path.rpartition("/")[0] or "/"  # it is in an archive, or is no file at all
        mode = _mode(path)
    line = path.encode("utf-8") + b"\n"
    if not S_ISREG(mode) or b"\n" in line[:-1] or (path != name and path in _seen):
        return
    _seen.add(path)
    # None stays open: a program may close what it does not know, and give the number to a file of its own.
    record = _open(_RECORD, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        if _fstat(record).st_size + len(line) <= _LARGEST:
            _write(record, line)
    finally:
        _close(record)


def _mode(path):
    # type: (str) -> int
    try:
        return _stat(path).st_mode
    except OSError:
        return 0


def _hide():
    # type: () -> None
    """Leave the places where modules are looked for as they would be, for this process."""
    parts = [part for part in os.environ.get("PYTHONPATH", "").split(":") if part != _PLACE]
    ours = [part for part in parts if part.startswith(_MORE)]
    added = "".join(ours)[len(_MORE) :]
    places = []
    for place in sys.path:
        if not str(place).startswith(_MORE):
            places.append(place)
        elif added:
            places.append(os.path.abspath(added))
    sys.path[:] = places
    if ours and len(parts) > 1 and not added and os.getcwd() not in places:
        # A script has added to what would be empty: ``$PYTHONPATH:/two``.  Its empty part is where the program works,
        # unless that script sees to it, which nobody can tell.  Behind all others that takes the place of none.
        sys.path.append(os.getcwd())


def _begin():
    # type: () -> None
    try:
        _hide()
        if hasattr(sys, "addaudithook"):
            # What others have written down need not be there twice.
            record = _open(_RECORD, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
            try:
                lines = _read(record, _LARGEST).decode("utf-8", "replace").split("\n")[: _MOST // 2]
                _seen.update(lines, map(_site, lines))
            finally:
                _close(record)
            sys.addaudithook(_hook)
    except Exception:
        pass


if __name__ == "sitecustomize":
    # First of all, so that what is imported below is none of ours.
    sys.path[:] = [place for place in sys.path if place != _PLACE]
    _begin()
    # The one that would have been taken; where there is none the error is what Python expects.
    del sys.modules[__name__]
    import sitecustomize  # type: ignore[import-not-found]  # noqa: F401
