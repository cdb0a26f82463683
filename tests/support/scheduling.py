"""How tests are spread over processes: file by file, also after one of the processes has died.

pytest-xdist 3.8 gives the files of a process that died to the others, those that are done among them.  Whoever gets a
file in which nothing is left to run waits for ever, and with it the whole run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from xdist.scheduler import LoadFileScheduling

if TYPE_CHECKING:
    from xdist.remote import Producer
    from xdist.workermanage import WorkerController


class _FileScheduling(LoadFileScheduling):  # type: ignore[misc]  # it comes without types
    """Let the others finish the files of a process that died, and repeat the test in which it did once."""

    def __init__(self, config: pytest.Config, log: Producer | None = None) -> None:
        super().__init__(config, log)
        self._repeated: set[str] = set()

    def remove_node(self, node: WorkerController) -> str | None:
        """Take the work of a process away, and return the test in which it died, if it did."""
        work = self.assigned_work[node]
        for path in [path for path, tests in work.items() if all(tests.values())]:
            del work[path]
        crashed = next((test for tests in work.values() for test, done in tests.items() if not done), None)
        if crashed in self._repeated:
            tests = work[self._split_scope(crashed)]
            tests[crashed] = True
            if all(tests.values()):
                del work[self._split_scope(crashed)]
        super().remove_node(node)
        return crashed

    def mark_test_pending(self, item: str) -> None:
        """Note that a test is repeated, of which its process died: it was not marked as complete."""
        self._repeated.add(item)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> _FileScheduling:
    """Return what gives the files to the processes."""
    return _FileScheduling(config, log)
