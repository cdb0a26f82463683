"""`messages` against what JSON leaves open and what hostile writers make of it."""

from __future__ import annotations

import contextlib
import io
import json
import subprocess
import sys
import tracemalloc
from typing import TYPE_CHECKING, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xpucached import messages
from xpucached.messages import BadMessage

if TYPE_CHECKING:
    from collections.abc import Callable

    from xpucached.messages import Json

LARGEST: Final = 1 << 20


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "not JSON"),
        (b"{", "brackets"),
        (b"[1]]", "brackets"),
        (b"[}", "not JSON"),
        (b"{} {}", "not JSON"),
        (b"\xef\xbb\xbf{}", "not JSON"),
        (b"\xff\xfe[\x00]\x00", "UTF-8"),
        (b'"\xed\xa0\x80"', "UTF-8"),
        (b'"\n"', "not JSON"),
        (b"NaN", "NaN"),
        (b'{"a": Infinity}', "Infinity"),
        (b"[-Infinity]", "Infinity"),
        (b'{"watch": 1e999}', "too large"),
        (b"[-1e400]", "too large"),
        (b"1" * 400 + b".5", "too large"),
        (b"[%s]" % (b"9" * 21), "digits"),
        (b"-" + b"9" * 5000, "digits"),
        (b'{"a": 1, "a": 2}', "'a' stands twice"),
        (b'[{"b": {"a": 1, "\\u0061": 2}}]', "'a' stands twice"),
        (b'"\\ud800"', "half of a character"),
        (b'{"\\udfff": 1}', "half of a character"),
        (b'[["\\udc80"]]', "half of a character"),
        (b"[" * 17 + b"]" * 17, "deeper than 16"),
        (b"[" * 1_000_000, "deeper than 16"),
        (b'{"a":' * 100_000, "deeper than 16"),
        (b'[{"a":' * 9 + b"1" + b"}]" * 9, "deeper than 16"),
        (b'["]]]]]]]]]]]]]]]]]]",' + b"[" * 17, "deeper than 16"),
        (b'["\\"",' + b"[" * 17, "deeper than 16"),
        (b"1" * (LARGEST + 1), f"more than {LARGEST} bytes"),
    ],
)
def test_what_is_refused_is_refused_in_a_sentence(data: bytes, why: str) -> None:
    with pytest.raises(BadMessage, match=why):
        messages.parse(data, largest=LARGEST)


@pytest.mark.parametrize(
    ("data", "value"),
    [
        (b" [1, 2.5, true, null] ", [1, 2.5, True, None]),
        (b"[%d, %d]" % (2**64 - 1, -(2**63)), [2**64 - 1, -(2**63)]),
        (b'"%s"' % (b"9" * 30), "9" * 30),
        (b'"\\ud83d\\ude00 \\"[[[[[[[[[[[[[[[[[[[["', '\U0001f600 "[[[[[[[[[[[[[[[[[[[['),
        ('"ä"'.encode(), "ä"),
        (b'{"a": {"a": {}}}', {"a": {"a": {}}}),
        (b"[0.123456789012345678901234]", [0.12345678901234568]),
    ],
)
def test_what_fits_is_read(data: bytes, value: Json) -> None:
    assert messages.parse(data, largest=LARGEST) == value


def test_the_depth_is_exact() -> None:
    for depth in (0, 1, 7, 16, 50):
        fits = b'[{"a":' * (depth // 2) + b"[" * (depth % 2) + b"]" * (depth % 2)
        fits = (fits or b"1") if depth % 2 else fits + b"1"
        fits += b"}]" * (depth // 2)
        messages.parse(fits, largest=LARGEST, depth=depth)
        with pytest.raises(BadMessage, match="deeper"):
            messages.parse(b"[" + fits + b"]", largest=LARGEST, depth=depth)


def test_values_are_counted_and_commas_in_text_are_not() -> None:
    texts = b'["a,,,,,,\\",,,,,,", {"b,,,,": 1, "c": 2}]'
    assert messages.parse(texts, largest=LARGEST, most=3)
    holding = b'[{"[": {}}, {"{": [[]]}]'
    assert messages.parse(holding, largest=LARGEST, most=6)
    with pytest.raises(messages.TooMuch, match="more than 5 values"):
        messages.parse(holding, largest=LARGEST, most=5)
    with pytest.raises(BadMessage, match="more than 2 values"):
        messages.parse(texts, largest=LARGEST, most=2)
    with pytest.raises(BadMessage, match="more than 400000 values"):
        messages.parse(b"[" + b"1," * 400_000 + b"1]", largest=LARGEST, most=400_000)


@pytest.mark.parametrize("piece", [b'"",', b'"\\"",', b'"\\\\",', b'{"":['])
def test_what_is_refused_takes_little_memory(piece: bytes) -> None:
    data = b"[" + piece * 100_000
    tracemalloc.start()
    try:
        with pytest.raises(BadMessage):
            messages.parse(data, largest=LARGEST, most=10)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 25 * len(data)


def test_bytes_of_file_names_are_let_through_where_they_are_expected() -> None:
    name = b"caf\xe9".decode("utf-8", "surrogateescape")
    data = json.dumps([name]).encode()

    assert messages.parse(data, largest=LARGEST, escaped_bytes=True) == [name]
    with pytest.raises(BadMessage, match="half"):
        messages.parse(data, largest=LARGEST)
    with pytest.raises(BadMessage, match="half"):
        messages.parse(b'["\\udc7f"]', largest=LARGEST, escaped_bytes=True)


_TEXTS: Final = st.text(st.characters(codec="utf-8"))
_VALUES: Final = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**20) + 1, 10**20 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(codec="utf-8")),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(st.characters(codec="utf-8")), inner, max_size=4)
    ),
    max_leaves=20,
)


@given(_VALUES, st.booleans())
def test_what_is_written_is_read_again(value: Json, escaped: bool) -> None:  # noqa: FBT001 - hypothesis gives it
    data = json.dumps(value, ensure_ascii=escaped).encode()

    assert messages.parse(data, largest=LARGEST, depth=30) == value


@given(st.binary(max_size=200) | st.text('[]{}",:\\u0189dDeE.-+aftnN \n', max_size=200).map(str.encode))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    with contextlib.suppress(BadMessage):
        messages.parse(data, largest=150)


@pytest.mark.parametrize(
    "take",
    [
        lambda one: messages.whole(one, "a", least=0, most=9),
        lambda one: messages.number(one, "a", least=0, most=9),
        lambda one: messages.flag(one, "b"),
        lambda one: messages.text(one, "c", longest=3),
        lambda one: messages.items(one, "d", most=2),
    ],
)
@pytest.mark.parametrize(
    ("message", "fits"),
    [
        ({"a": 9, "b": True, "c": "abc", "d": [1, 2]}, True),
        ({"a": 0, "b": False, "c": "", "d": []}, True),
        ({"a": 10, "b": 1, "c": "abcd", "d": [1, 2, 3]}, False),
        ({"a": True, "b": None, "c": ["a"], "d": "ab"}, False),
        ({"a": "1", "b": "true", "c": 1, "d": {}}, False),
        ({"a": -1, "b": 0, "c": None, "d": None}, False),
    ],
)
def test_a_member_has_its_type_and_range(
    take: Callable[[dict[str, Json]], object],
    message: dict[str, Json],
    fits: bool,  # noqa: FBT001 - a parameter
) -> None:
    if fits:
        take(message)
    else:
        with pytest.raises(BadMessage, match=r"^[abcd] is "):
            take(message)


def test_a_member_that_is_not_there_is_its_default_or_refused() -> None:
    assert messages.whole({}, "a", least=1, most=2, default=2) == 2
    assert messages.flag({}, "a", default=False) is False
    assert messages.text({}, "a", longest=1, default="") == ""
    assert messages.items({}, "a", most=1) == []
    with pytest.raises(BadMessage):
        messages.whole({}, "a", least=0, most=2)
    with pytest.raises(BadMessage):
        messages.flag({}, "a")
    with pytest.raises(BadMessage, match="not an object"):
        messages.members([])
    with pytest.raises(BadMessage, match="unknown key: 'b'"):
        messages.members({"a": 1, "b": 2}, known=("a",))


def test_lines_of_a_pipe_are_bounded() -> None:
    stream = io.BytesIO(b"one\nfive5\n")
    assert messages.line(stream, largest=5) == b"one"
    assert messages.line(stream, largest=5) == b"five5"
    assert messages.line(stream, largest=5) is None
    with pytest.raises(BadMessage, match="more than 5"):
        messages.line(io.BytesIO(b"123456\n"), largest=5)
    with pytest.raises(BadMessage, match="cut short"):
        messages.line(io.BytesIO(b"12345"), largest=5)


@pytest.mark.flow
def test_it_loads_nothing_but_the_standard_library() -> None:
    """The watcher runs with rights that no other part has, and must stay small."""
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", _LOADS], input=messages.__file__, capture_output=True, text=True, check=True
    )

    assert set(done.stdout.split()) <= sys.stdlib_module_names | {"messages"}


_LOADS: Final = """
import importlib.util, sys
spec = importlib.util.spec_from_file_location("messages", sys.stdin.read())
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
print(*{name.partition(".")[0] for name in sys.modules} - {"__main__"})
"""
