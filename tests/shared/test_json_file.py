"""Users' JSON files: read like any JSON, except that duplicate keys are refused."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from shared.errors import ConfigError
from shared.files.json_file import GivenTwice, load_json, read_json_file

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@given(values, st.sampled_from([None, 2]))
def test_json_without_duplicate_keys_is_read(value: Any, indent: int | None) -> None:
    assert load_json(json.dumps(value, indent=indent)) == value


@given(values, values, st.text())
def test_a_duplicate_key_is_found_on_its_line_in_any_context(before: Any, inside: Any, key: str) -> None:
    name, value, around = json.dumps(key), json.dumps(inside), json.dumps(before, indent=1)
    text = f'[{around},\n{{"{{[\\"": [{value}],\n{name}: {value},\n{name}: "]"}} broken behind'
    assume(key != '{["')
    with pytest.raises(GivenTwice) as caught:
        load_json(text)
    line = around.count("\n") + 3
    assert (caught.value.name, caught.value.first_line, caught.value.line) == (key, line, line + 1)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"mcpServers": {\n "a": {"url": "x"},\n "a": {"url": "y"}}}', "f.json:3: 'a' is given again, after line 2"),
        ('{"a": 1, "\\u0061": 2}', "f.json:1: 'a' is given again, after line 1; expected it once"),
        ("{", "f.json: not JSON: Expecting property name"),
        ("[" * 100_000, "f.json: not JSON: nested too deeply"),
    ],
)
def test_errors_are_reported_with_file_and_line(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "f.json").write_text(text)
    with pytest.raises(ConfigError) as caught:
        read_json_file(tmp_path / "f.json", "something")
    assert said in str(caught.value)


def test_equal_keys_in_different_objects_and_a_byte_order_mark_are_accepted() -> None:
    assert load_json('\ufeff[{"a": {"a": 1}}, {"a": "\\"a\\": {"}]') == [{"a": {"a": 1}}, {"a": '"a": {'}]


def test_in_a_file_that_came_with_a_model_the_last_of_two_equal_keys_counts(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer_config.json"
    path.write_text('{"eos_token": "a", "eos_token": "b"}')
    assert read_json_file(path, "a model folder", keys_once=False) == {"eos_token": "b"}
