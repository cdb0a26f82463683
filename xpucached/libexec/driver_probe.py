"""Act: the child that asks the installed drivers who they are; loads OpenCL or Level Zero, and nothing of ours.

It runs in a fresh process with any Python from 3.9 on (``python driver_probe.py --backend opencl``), because a
driver may crash, hang or print.  With ``--backend runtime --folder DIR`` it asks them through the SYCL
runtime that lies there instead.  It answers one JSON object on the descriptor that ``--fd`` names:
``{"environments": [[platform, device, version, driver], …], "problems": [[code, message, hint], …]}``.

The four strings are composed as Unified Runtime's adapters compose them (read from intel/llvm up to 2026-08, compared
with what runtimes 2025.2 and 2025.3 wrote): OpenCL's own texts byte for byte, and for Level Zero the adapter's name,
the device's name, the IP version, and the driver's version string.
"""

from __future__ import annotations

import contextlib
import getopt  # argparse takes ten times as long to load
import json
import os
import resource
import sys
from types import ModuleType

TYPE_CHECKING = False  # as in `driver_calls`

if TYPE_CHECKING or __package__:
    from xpucached.libexec import level_zero, opencl, unified_runtime
    from xpucached.libexec.driver_calls import end_with_starter
else:
    # It is started by its path, isolated: what else it is made of lies beside it, and nothing else is found there.
    sys.modules["xpucached_libexec"] = _package = ModuleType("xpucached_libexec")
    _package.__path__ = [os.path.dirname(os.path.realpath(__file__))]  # noqa: PTH120 - without pathlib it starts faster
    from xpucached_libexec import level_zero, opencl, unified_runtime
    from xpucached_libexec.driver_calls import end_with_starter

if TYPE_CHECKING:
    from collections.abc import Sequence

    from xpucached.libexec.driver_calls import Environments, Problems

BACKENDS = {"opencl": opencl.ask, "level-zero": level_zero.ask}


def main(arguments: Sequence[str] | None = None) -> int:
    """Ask, answer, and leave without giving the drivers a chance to fail at exit.

    ``--backend`` names a driver (several times: each of them; not at all: all of them), or ``runtime`` for the SYCL
    runtime that lies in ``--folder``.  The answer goes to the descriptor ``--fd``, stdout if there is none.
    """
    given = getopt.getopt(sys.argv[1:] if arguments is None else arguments, "", ["backend=", "folder=", "fd="])[0]
    backends = [value for option, value in given if option == "--backend"]
    only = {"--folder": "", "--fd": "1", **dict(given)}
    end_with_starter()
    # A driver that crashes is an answer, not a reason to fill the disk.
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    environments: Environments = []
    problems: Problems = []
    for backend in backends or sorted(BACKENDS):
        found, wrong = unified_runtime.ask(only["--folder"]) if backend == "runtime" else BACKENDS[backend]()
        environments.extend(found)
        problems.extend(wrong)
    descriptor = int(only["--fd"])
    answer = json.dumps({"environments": environments, "problems": problems}).encode("ascii") + b"\n"
    while answer:
        answer = answer[os.write(descriptor, answer) :]
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
