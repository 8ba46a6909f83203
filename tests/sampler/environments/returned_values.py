"""What worlds of the tests return: wrong values with what is said of them, and values of every type with what the model sees."""

import collections
import dataclasses
import io
from collections.abc import Callable
from typing import Any

import numpy as np


def _with(place: int, value: Any) -> Callable[[list[Any]], Any]:
    return lambda right: tuple([*right[:place], value, *right[place + 1 :]])


# What is wrong, and what is said of it.
WRONG: list[tuple[str, Callable[[list[Any]], Any]]] = [
    ("reward is nan; expected a finite number", _with(1, float("nan"))),
    ("reward is None; expected a finite number", _with(1, None)),
    ("reward is array([0., 0.]) (ndarray); expected a finite number", _with(1, np.zeros(2))),
    ("reward is (1+2j) (complex); expected a finite number", _with(1, 1 + 2j)),
    ("reward is np.complex64(1+0j) (complex64); expected", _with(1, np.complex64(1))),
    ("reward is '1'; expected a finite number", _with(1, "1")),
    ("reward is array('1', dtype='<U1') (ndarray); expected", _with(1, np.array("1"))),
    ("reward is [1.0] (list); expected a finite number", _with(1, [1.0])),
    ("terminated is 'no'; expected True or False", _with(2, "no")),
    ("terminated is None; expected True or False", _with(2, None)),
    ("truncated is array([False]) (ndarray); expected True or False", _with(3, np.array([False]))),
    ("observation is array([0., 0., 0.]) (ndarray); expected numbers of shape (2,)", _with(0, np.zeros(3))),
    ("observation is None; expected numbers of shape (2,)", _with(0, None)),
    ("what step returned is (array(", lambda right: tuple(right[:4])),
    ("what step returned is None; expected 5 values: observation, reward,", lambda right: None),
    ("observation is <object object at", _with(0, object())),
]


@dataclasses.dataclass
class Place:
    row: int
    marks: frozenset[str]


Way = collections.namedtuple("Way", "north south")

# What is observed, what is drawn, and what the model sees of both.
SEEN: list[tuple[Any, Any, str]] = [
    (np.int64(3), None, "Observation: 3"),
    (np.array([np.nan, np.inf, -np.inf, 1.5]), None, 'Observation: ["NaN", "Infinity", "-Infinity", 1.5]'),
    (b"caf\xc3\xa9 \xff", None, "Observation: café \\xff"),
    (Place(1, frozenset("cab")), None, 'Observation: {"row": 1, "marks": ["a", "b", "c"]}'),
    (Way(np.float32(0.5), (np.bool_(True),)), None, 'Observation: {"north": 0.5, "south": [true]}'),
    (
        {(np.int64(0), np.int64(1)): {"deep": (np.array([1, 2]), {"er": None})}},
        None,
        'Observation: {"[0, 1]": {"deep": [[1, 2], {"er": null}]}}',
    ),
    ("\x1b[31mfire\x1b[0m\r\nand\x07 \x1b]0;t\x07ice", None, "Observation: red[fire]\nand ice"),
    ({"log": "\x1b[42mok\x1b[m"}, None, 'Observation: {"log": "{ok}"}'),
    (0, ["\x1b[41mS\x1b[0mF", "FG"], "[S]F\nFG\n\nObservation: 0"),
    (0, io.StringIO("a\nb\n"), "a\nb\n\nObservation: 0"),
    (0, b"bytes", "bytes\n\nObservation: 0"),
    (0, [], "Observation: 0"),
]
