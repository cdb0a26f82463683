"""How settings are written as data."""

from __future__ import annotations

import pytest

from xpucached.answers import typed


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("7", 7),
        ("0", 0),
        ("007", "007"),
        ("true", True),
        ("false", False),
        ("none", None),
        ("unlimited", None),
        ("1 GiB", "1 GiB"),
        ("9" * 20, 10**20 - 1),
        # Whoever answers so is no daemon of ours; it is shown all the same.
        ("9" * 5000, "9" * 5000),
    ],
)
def test_a_setting_is_what_the_configuration_would_have(text: str, value: object) -> None:
    assert typed({"a.b": f"{text} (default)"}) == {"a.b": {"value": value, "source": "default"}}
