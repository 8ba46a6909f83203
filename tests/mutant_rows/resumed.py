"""Protections of conversations that are rendered in parts."""

from tests.mutant_rows.mutant import Mutant

RESUMED, LOOPS = "sampler/core/rendering/resumed.py", "sampler/core/rendering/loops.py"
TESTS = "tests/sampler/test_resumed.py"
READS = f"{TESTS}::test_whatever_a_pass_reads_the_parts_are_the_whole"

MUTANTS = (
    Mutant(
        "a pass that reads whether it is the last is rendered again when it no longer is",
        RESUMED,
        "        self._reach = max(self._reach, index + 1 if has else _BEYOND)\n",
        "",
        READS,
    ),
    Mutant(
        "messages that a pass reads by their index count as read",
        RESUMED,
        "        self.reach = max(self.reach, index + 1 if is_inside else _BEYOND)\n",
        "",
        READS,
    ),
    Mutant(
        "namespaces are as they were where a loop goes on",
        RESUMED,
        "            _restore(namespaces, loop.states[at])\n",
        "",
        READS,
    ),
    Mutant(
        "messages are the same only as objects",
        RESUMED,
        "if a is not b)",
        "if a != b)",
        f"{TESTS}::test_equal_messages_with_other_marks_are_rendered_again",
    ),
    Mutant(
        "a loop goes on only if the names that it reads have the same values",
        RESUMED,
        " and _all_same(loop.names, known) else 0\n",
        " else 0\n",
        READS,
    ),
    Mutant(
        "texts with marks are the same only as objects",
        RESUMED,
        "    return type(old) in (*_SCALARS, BuiltinMethodType) and bool(old == new)\n",
        "    return isinstance(old, (*_SCALARS, BuiltinMethodType)) and bool(old == new)\n",
        f"{TESTS}::test_a_name_with_other_marks_is_rendered_again",
    ),
    Mutant(
        "what macros read belongs to the loop that calls them",
        LOOPS,
        "- {*lists, loop.target.name, _LOOP}) | of_macros)\n",
        "- {*lists, loop.target.name, _LOOP}))\n",
        READS,
    ),
    Mutant(
        "a loop that reads how many items come is rendered whole",
        LOOPS,
        '_READABLE = frozenset(("first", ',
        '_READABLE = frozenset(("revindex", "first", ',
        READS,
    ),
    Mutant(
        "a template that differs in parts is rendered whole",
        RESUMED,
        "            self._resumable, memory.skipped = None, 0\n            return whole\n",
        "            return text\n",
        f"{TESTS}::test_a_template_that_differs_in_parts_is_rendered_whole",
    ),
    Mutant(
        "a copy of a thread's ids grows in a list of its own",
        "shared/tokens/grown_ids.py",
        "        return _of(self._list, self._length, is_owner=False)\n",
        "        return _of(self._list, self._length, is_owner=True)\n",
        "tests/shared/test_grown_ids.py::test_the_owner_grows_without_a_copy_and_a_borrower_with_one",
    ),
    Mutant(
        "ids that others have grown out of grow in a list of their own",
        "shared/tokens/grown_ids.py",
        "        if not self._is_owner or self._length != len(self._list):\n",
        "        if not self._is_owner:\n",
        "tests/shared/test_grown_ids.py::test_what_a_value_shows_never_changes",
    ),
)
