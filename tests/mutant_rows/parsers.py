"""Protections of tool calls: a call has the arguments that the model wrote, or is an error."""

from tests.mutant_rows.mutant import Mutant

CALLS = "tests/sampler/test_written_calls.py"
TYPES = "tests/sampler/test_parameter_types.py"
ERROR = f"{CALLS}::test_what_would_be_called_with_other_arguments_is_an_error"
CHANGED = f"{CALLS}::test_an_argument_that_is_written_twice_or_would_be_changed_is_an_error"
VALUE = f"{TYPES}::test_a_text_becomes_the_value_that_the_schema_allows"
MEANT = "tests/sampler/test_parser_table.py::test_a_text_is_read_as_it_was_meant_or_is_an_error"

MUTANTS = (
    Mutant(
        "calls: `parameters` for `arguments`",
        "sampler/core/parsers/json_calls.py",
        'ARGUMENTS = ("arguments", "parameters")',
        'ARGUMENTS = ("arguments",)',
        f"{CALLS}::test_arguments_are_read_under_each_name_that_models_give_them",
    ),
    Mutant(
        "calls: two places for arguments",
        "sampler/core/parsers/json_calls.py",
        "elif len(written) > 1:",
        "elif False:",
        ERROR,
    ),
    Mutant(
        "calls: arguments as members of the call",
        "sampler/core/parsers/json_calls.py",
        'if isinstance(value.get("name"), str) and unknown:',
        "if False:",
        ERROR,
    ),
    Mutant(
        "calls: a name twice in an object",
        "sampler/core/parsers/json_values.py",
        "if len(members) < len(pairs):",
        "if False:",
        ERROR,
    ),
    Mutant(
        "calls: digits that a float does not have",
        "sampler/core/parsers/json_values.py",
        "if not _is_written(value, digits):",
        "if False:",
        ERROR,
    ),
    Mutant(
        "calls: a parameter that is not closed before the next",
        "sampler/core/parsers/qwen3_coder.py",
        "inner = _TAG.search(value)\n",
        "inner = None\n",
        f"{CALLS}::test_a_parameter_that_is_not_closed_before_the_next_is_an_error",
    ),
    Mutant(
        "calls: a value that is not closed before the next key",
        "sampler/core/parsers/glm45.py",
        "for tag in (CLOSE, _KEY, _VALUE)",
        "for tag in (CLOSE,)",
        f"{CALLS}::test_a_parameter_that_is_not_closed_before_the_next_is_an_error",
    ),
    Mutant(
        "calls: a parameter twice",
        "sampler/core/parsers/qwen3_coder.py",
        'twice" if key in before else',
        'twice" if False else',
        CHANGED,
    ),
    Mutant(
        "calls: an argument of a Python call twice",
        "sampler/core/parsers/python_values.py",
        "if key.group() in arguments:",
        "if False:",
        CHANGED,
    ),
    Mutant(
        "calls: a number that begins with 0",
        "sampler/core/parsers/python_values.py",
        "if _LEADING_ZERO.match(digits):",
        "if False:",
        CHANGED,
    ),
    Mutant(
        "calls: an answer with a name",
        "sampler/core/parsers/llama3.py",
        'return "name" in call and any(name in call for name in ARGUMENTS)',
        'return "name" in call',
        f"{CALLS}::test_an_answer_in_the_form_of_a_call_stays_an_answer",
    ),
    Mutant(
        "calls: a list that is no list of calls",
        "sampler/core/parsers/pythonic.py",
        "if reply.number == before and",
        "if False and",
        f"{CALLS}::test_an_answer_in_the_form_of_a_call_stays_an_answer",
    ),
    Mutant(
        "calls: the type behind a reference",
        "sampler/core/parsers/schema_types.py",
        "yield resolved(self._root, schema[key])",
        "yield True",
        VALUE,
    ),
    Mutant(
        "calls: all of several schemas",
        "sampler/core/parsers/schema_types.py",
        'yield from schema["allOf"]',
        "yield True",
        VALUE,
    ),
    Mutant(
        "calls: a constant",
        "sampler/core/parsers/schema_types.py",
        'yield _of_values([schema["const"]])',
        "yield ANYTHING",
        VALUE,
    ),
    Mutant(
        "calls: a bound on the visited schemas",
        "sampler/core/parsers/schema_types.py",
        "return self._remaining >= 0 and depth <= MAX_DEPTH",
        "return depth <= MAX_DEPTH and self._remaining > -50 * MAX_SCHEMAS",
        f"{TYPES}::test_schemas_that_name_themselves_many_times_cost_a_bounded_number_of_visits",
    ),
    Mutant(
        "calls: text that fits no type",
        "sampler/core/parsers/typed_arguments.py",
        "if value is _NO_VALUE or not allows(kinds, value):",
        "if value is _NO_VALUE:",
        VALUE,
    ),
    Mutant(
        "calls: a token of the format inside a JSON text",
        "sampler/core/parsers/llama3.py",
        "_read_calls(after if tagged else rest,",
        '_read_calls(after.replace(TAG, ";") if tagged else rest,',
        MEANT,
    ),
    Mutant(
        "calls: a token of the format inside a Python text",
        "sampler/core/parsers/pythonic.py",
        "reasoning, rest = split_reasoning(text)",
        'reasoning, rest = split_reasoning(_TAG.sub("", text))',
        MEANT,
    ),
    Mutant(
        "calls: a start tag twice",
        "sampler/core/parsers/scan.py",
        "while text.startswith(opening, at):",
        "if text.startswith(opening, at):",
        "tests/sampler/test_parser_table.py::test_what_an_engine_reads_as_meant_is_read_as_meant",
    ),
    Mutant(
        "calls: an answer with a tool's name in its members",
        "sampler/core/parsers/llama3.py",
        "if tagged or _is_call(value):",
        "if True:",
        f"{CALLS}::test_an_answer_in_the_form_of_a_call_stays_an_answer",
    ),
    Mutant(
        "calls: a type of a published schema",
        "sampler/core/parsers/schema_types.py",
        "        for options in _options(schema):\n            yield",
        "        for options in ():\n            yield",
        "tests/sampler/test_published_schemas.py::test_what_a_published_schema_allows_is_sent_as_the_model_wrote_it",
    ),
    Mutant(
        "calls: types of a rescored conversation",
        "scripts/tandem/what_if/rescored.py",
        "tools.get(dispatch.tools_hash, ())",
        "()",
        "tests/tandem/test_resettle.py::test_scorers_read_calls_with_the_types_of_the_tools_that_the_model_had",
    ),
    Mutant(
        "calls: a bound on the schemas visited for a reply",
        "sampler/core/parsers/schema_types.py",
        "self._remaining_of_tool -= MAX_SCHEMAS - self._remaining",
        "pass",
        f"{TYPES}::test_the_parameters_of_one_reply_cost_a_bounded_number_of_visits",
    ),
    Mutant(
        "calls: the call behind one that is not closed",
        "sampler/core/parsers/hermes.py",
        "return next_call(text, body_at, OPEN, CLOSE)",
        "return next_call(text, body_at, CLOSE, CLOSE)",
        f"{CALLS}::test_a_call_behind_one_that_is_not_closed_is_read",
    ),
    Mutant(
        "calls: an end tag of reasoning inside of a call",
        "sampler/core/parsers/reply.py",
        "elif name == opening and closed is not None:",
        "elif False:",
        "tests/sampler/test_written_calls.py"
        "::test_tags_of_reasoning_in_a_call_are_its_text_and_calls_in_any_reasoning_are_none",
    ),
)
