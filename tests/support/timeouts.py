"""How long a test may take, also where it is run again.

pytest-timeout 2.4 stops its clock as soon as a test has failed: neither what it then takes down, nor the next try of
pytest-rerunfailures, would ever end if it hung.
"""

from __future__ import annotations

import pytest
import pytest_timeout  # type: ignore[import-untyped]  # it comes without types


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Give each try the whole time."""
    _start(item)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> None:
    """Give what is taken down the whole time, too."""
    _start(item)


def _start(item: pytest.Item) -> None:
    settings = pytest_timeout._get_item_settings(item)
    if settings.timeout:
        item.config.pluginmanager.hook.pytest_timeout_set_timer(item=item, settings=settings)
