"""Typed values from texts."""

import enum
from pathlib import Path
from typing import Dict, List, Literal, Optional, Union

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx._core import values


class Colour(enum.Enum):
    RED = 1
    BLUE = 2


@pytest.mark.parametrize(
    ("text", "hint", "value"),
    [
        ("a b", str, "a b"),
        ("", str, ""),
        ("None", Optional[str], "None"),
        ("7", int, 7),
        ("-7", Optional[int], -7),
        ("7", int | None, 7),
        ("7", Union[int, None], 7),
        ("1e-3", float, 0.001),
        ("Yes", bool, True),
        ("FALSE", Optional[bool], False),
        ("/a/b", Path, Path("/a/b")),
        ("b", Literal["a", "b"], "b"),
        ("2", Literal[1, 2], 2),
        ("RED", Colour, Colour.RED),
        ("", list[str], []),
        ("a", list[str], ["a"]),
        ("a, b", List[str], ["a", "b"]),
        ("1,2", list[int], [1, 2]),
        ("1,2", tuple[int, ...], (1, 2)),
        ("a,'b,c',\"d=e\"", list[str], ["a", "b,c", "d=e"]),
        ("it's,fine", list[str], ["it's", "fine"]),
        ("a=1,b=2", Dict[str, int], {"a": 1, "b": 2}),
        ("a=x=y", dict[str, str], {"a": "x=y"}),
        ('a="x,y=z",b=', dict[str, str], {"a": "x,y=z", "b": ""}),
        ("a=yes", dict[str, bool], {"a": True}),
        ("", dict, {}),
        ("a,b", list, ["a", "b"]),
    ],
)
def test_texts_become_values(text, hint, value):
    """By the annotation alone."""
    assert not values.problem(hint)
    found = values.decode(text, hint)
    assert (found, type(found)) == (value, type(value))


@pytest.mark.parametrize(
    ("text", "hint", "said"),
    [
        ("2", bool, "not yes or no"),
        ("", bool, "not yes or no"),
        ("on", bool, "not yes or no"),
        ("1.5", int, "not a whole number"),
        ("x", float, "not a number"),
        ("c", Literal["a", "b"], "choose one of a, b"),
        ("GREEN", Colour, "choose one of RED, BLUE"),
        ("1,x", list[int], "not a whole number"),
        ("a", dict[str, str], "is not KEY=VALUE"),
        ("c,a=b", dict[str, str], "'c' is not KEY=VALUE"),
        ("=b", dict[str, str], "is not KEY=VALUE"),
        ('"a', list[str], "unclosed quote"),
    ],
)
def test_texts_that_are_no_values_say_so(text, hint, said):
    """What was seen, and what is wanted."""
    with pytest.raises(ValueError, match=said):
        values.decode(text, hint)


@pytest.mark.parametrize("hint", [object, Union[int, str], list[list[int]], tuple[int, str], bytes])
def test_types_that_cannot_be_written_are_known(hint):
    """Before anyone tries."""
    assert values.problem(hint)


@given(
    st.lists(
        st.text(st.characters(exclude_characters="\"'", exclude_categories=["C", "Z"]), min_size=1)
    )
)
def test_lists_come_back_as_they_were_written(items):
    """Whatever is in them, but for quotes."""
    assert values.decode(values.encode(items), list[str]) == items


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("a=1,b=2", {"a": "1", "b": "2"}),
        ("a=1;b=2", {"a": "1", "b": "2"}),
        ("hosts=x,y,grace=3", {"hosts": "x,y", "grace": "3"}),
        ('a="1,2",b="c=d"', {"a": '"1,2"', "b": '"c=d"'}),
        ("env=A:1,B:2;c=3", {"env": "A:1,B:2", "c": "3"}),
        ("", {}),
        ("a=,b=1", {"a": "", "b": "1"}),
        ("a=1,", {"a": "1"}),
    ],
)
def test_pairs(text, found):
    """What has no `=` belongs to what is before it."""
    assert dict(values.pairs(text)) == found


@pytest.mark.parametrize(
    ("value", "hint", "made"),
    [
        (3, int, 3),
        ("3", int, 3),
        (3, float, 3.0),
        (True, bool, True),
        (["a", 1], list[str], ValueError),
        ([1, 2], list[int], [1, 2]),
        ({"a": 1}, dict[str, int], {"a": 1}),
        (None, Optional[int], None),
        (None, int, ValueError),
        (1, bool, ValueError),
        (True, int, ValueError),
        (1.5, int, ValueError),
        ([], str, ValueError),
        ("a", Literal["a"], "a"),
        (4, Literal["a"], ValueError),
        ("x", float, ValueError),
        ([], float, ValueError),
    ],
)
def test_values_of_a_file_are_held_against_the_type(value, hint, made):
    """TOML and JSON have types of their own."""
    if made is ValueError:
        with pytest.raises((ValueError, TypeError)):
            values.accept(value, hint)
    else:
        assert values.accept(value, hint) == made
