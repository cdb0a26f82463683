"""What a daemon that rests has loaded: nothing that only others need, for it would stay in memory."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.daemons import daemon

NEEDLESS = frozenset({
    *("_hashlib", "_ssl", "alembic", "click", "concurrent.futures.process", "configparser", "cryptography", "html"),
    *("logging.config", "mako", "multiprocessing", "rich", "ssl", "starlette.applications", "uvicorn", "uvicorn.main"),
    *("xpucached.bundling", "xpucached.cli", "xpucached.inspection", "xpucached.registry"),
})  # fmt: skip

TOLD = """
import atexit, json, sys
atexit.register(lambda: print(json.dumps(sorted(sys.modules)), flush=True))
from xpucached.daemon.main import main
sys.exit(main())
"""


@pytest.mark.flow
def test_a_user_s_daemon_that_answered_has_loaded_nothing_needless(tmp_path: Path, short_dir: Path) -> None:
    with daemon(tmp_path, short_dir) as one:
        one.words = ("-c", TOLD)
        one.start()
        one.ask("ls")
        assert one.end() == 0
        (told,) = (line for line in one.log.read_text().splitlines() if line.startswith("["))

    assert NEEDLESS & set(json.loads(told)) == set()


@pytest.mark.flow
def test_the_host_s_daemon_loads_nothing_needless_and_no_database() -> None:
    code = "import json, sys, xpucached.daemon.main, xpucached.daemon.host_daemon; print(json.dumps([*sys.modules]))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert (NEEDLESS | {"sqlalchemy", "apscheduler", "xpucached.catalog"}) & set(json.loads(done.stdout)) == set()
