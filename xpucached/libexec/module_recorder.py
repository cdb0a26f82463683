"""Write down which files a Python runs code of, save Python's own and those of installed packages.

A copy of this is ``sitecustomize.py`` in a directory that `xpucached.processes.module_record` puts first into
``PYTHONPATH`` for a model's processes: each Python among them starts with it, whatever started that, save those that
get another such variable, or look at none, or at no site (``-I``, ``-E``, ``-S``).  The program must not notice:
``sys.path``, what it has open, and a ``sitecustomize`` of its own are as they would be.  It starts with Pythons from
2.7 on, and sees something from 3.8 on.
"""

import os
import sys

_PLACE = os.path.dirname(os.path.abspath(__file__))
_RECORD = os.path.join(_PLACE, "record")
_ALONE = "alone"  # what that directory is called where ``PYTHONPATH`` was not set
_MOST = 4000  # files of one process
_LARGEST = 512 << 10  # bytes of the record; `xpucached.processes.module_record` reads no more
_INSTALLED = "/site-packages/", "/dist-packages/"
_STANDARD = os.path.dirname(os.path.realpath(os.__file__)) + "/"

_seen = set()  # type: set[str]


def _hook(event, arguments):
    # type: (str, tuple[object, ...]) -> None
    # It is called for all that Python does, and what it raises would end that.
    if event == "exec":
        name = getattr(arguments[0], "co_filename", None)
        if isinstance(name, str) and name not in _seen and len(_seen) < _MOST:
            _seen.add(name)
            if not name.startswith("<") and not any(part in name for part in _INSTALLED):
                _note(name)


def _note(name):
    # type: (str) -> None
    try:
        path = os.path.abspath(name)
        while not os.path.exists(path):
            path = os.path.dirname(path)  # it is in an archive, or is no file at all
        line = path.encode("utf-8") + b"\n"
        if not os.path.isfile(path) or os.path.realpath(path).startswith(_STANDARD) or b"\n" in line[:-1]:
            return
        # None stays open: a program may close what it does not know, and give the number to a file of its own.
        record = os.open(_RECORD, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            if os.fstat(record).st_size + len(line) <= _LARGEST:
                os.write(record, line)
        finally:
            os.close(record)
    except (OSError, ValueError):
        pass


def _hide():
    # type: () -> None
    """Leave the places where modules are looked for as they would be, for this process."""
    said = os.environ.get("PYTHONPATH", "").split(":")
    if _PLACE not in sys.path or _PLACE not in said:
        return
    at = sys.path.index(_PLACE)
    del sys.path[at]
    behind = said[said.index(_PLACE) + 1 :]
    try:
        if os.path.basename(_PLACE) == _ALONE and behind[:1] == [""] and sys.path[at : at + 1] == [os.getcwd()]:
            # It stands for what is empty, so that a script may add to it: ``PYTHONPATH+=/more``.  Where that leaves a
            # part that is empty (``$PYTHONPATH:/more``), modules are looked for where the program works, unless that
            # script sees to it, which nobody can tell.  Behind all others that takes the place of none.
            del sys.path[at]
            sys.path.extend([os.getcwd()] if said != [_PLACE, ""] else [])
    except OSError:
        pass


if __name__ == "sitecustomize":
    _hide()
    if hasattr(sys, "addaudithook"):
        sys.addaudithook(_hook)
    # The one that would have been taken; where there is none the error is what Python expects.
    del sys.modules[__name__]
    import sitecustomize  # type: ignore[import-not-found]  # noqa: F401
