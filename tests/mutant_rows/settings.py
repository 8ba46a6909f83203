"""Protections of settings and of task files: what is written is what is read, or is refused with its place."""

from tests.mutant_rows.mutant import Mutant

WRITTEN = "tests/test_written_settings.py::test_every_scalar_of_yamls_own_reads_as_it_is_written_or_is_refused"
SAME = "tests/test_written_settings.py"
WHOLE = "tests/shared/test_import_whole.py"
NOTHING = f"{WHOLE}::test_nothing_is_written_for_a_task_behind_a_full_batch_that_no_document_holds"

SECTIONS = "tests/shared/test_sections.py"

MUTANTS = (
    Mutant(
        "sections: a key that a mapping has not is refused in one line",
        "shared/configuration/sources.py",
        'return "" if key in known else',
        'return "" if known else',
        f"{SECTIONS}::test_what_a_section_of_the_sampler_lacks_is_told_in_one_line",
    ),
    Mutant(
        "sections: a key of a mapping is a flag with and without the section",
        "shared/configuration/sources.py",
        'others.append(f"{_whole_flag(cls, flag)}{equals}{value}")',
        "others.append(word)",
        f"{SECTIONS}::test_a_samplers_settings_stand_in_sections",
    ),
    Mutant(
        "sections: what is off inside of a section does not turn that on",
        "shared/configuration/sections.py",
        "elif own and not _is_empty(kind, own):",
        "elif own:",
        f"{SECTIONS}::test_a_samplers_settings_stand_in_sections",
    ),
    Mutant(
        "sections: what a switched-off section leaves without effect is told",
        "shared/configuration/loading.py",
        "if one in values and values[one] == value",
        "if one in values and values[one] != value",
        f"{SECTIONS}::test_what_is_given_to_a_section_that_is_switched_off_is_told",
    ),
    Mutant(
        "sections: the setting that turns a section on is asked for by those inside of its sections too",
        "shared/configuration/sections.py",
        "if setting.path[: len(place)] == place and other != name}",
        "if setting.path[:-1] == place and other != name}",
        f"{SECTIONS}::test_what_a_section_of_the_sampler_lacks_is_told_in_one_line",
    ),
    Mutant(
        "settings: a truth value is no number",
        "shared/configuration/typed_values.py",
        "    if isinstance(value, bool) and numbers and",
        "    if False and numbers and",
        f"{SAME}::test_truth_values_and_numbers_of_json_are_not_each_other",
    ),
    Mutant(
        "settings: a number has no leading zeros",
        "shared/configuration/typed_values.py",
        r"""_NUMBER = re.compile(r"[-+]?(\.[0-9]+|(0|[1-9][0-9]*)""",
        r"""_NUMBER = re.compile(r"[-+]?(\.[0-9]+|([0-9]+)""",
        WRITTEN,
    ),
    Mutant(
        "settings: plain scalars of YAML are text first",
        "shared/files/yaml_file.py",
        "return Scalar(node.value) if node.style is None else str(node.value)",
        "return yaml.safe_load(node.value) if node.style is None else str(node.value)",
        f"{SAME}::test_what_other_systems_read_otherwise",
    ),
    Mutant(
        "settings: what YAML 1.1 reads otherwise is refused where anything may stand",
        "shared/configuration/typed_values.py",
        "    if written.trap:\n",
        "    if False:\n",
        f"{SAME}::test_what_other_systems_read_otherwise",
    ),
    Mutant(
        "settings: an empty value is not given",
        "shared/configuration/sources.py",
        "        if not is_empty(value) or (",
        "        if True or (",
        f"{SAME}::test_what_is_empty_is_not_given_in_every_way",
    ),
    Mutant(
        "settings: an empty token is refused",
        "shared/configuration/sources.py",
        "        elif is_secret(cls, name) and name not in CONNECTIONS:\n",
        "        elif False:\n",
        f"{SAME}::test_what_is_empty_is_not_given_in_every_way",
    ),
    Mutant(
        "settings: ~ is the home folder",
        "shared/configuration/typed_values.py",
        """str(Path(text).expanduser()) if text.startswith("~") else text""",
        "text",
        f"{SAME}::test_a_tilde_is_the_home_folder_of_every_path_in_every_way",
    ),
    Mutant(
        "settings: none is no value",
        "shared/configuration/typed_values.py",
        "    return text in NONE and text not in",
        "    return False and text not in",
        "tests/test_setting_descriptions.py::test_every_setting_without_a_default_of_its_own_may_be_none_by_that_word",
    ),
    Mutant(
        "settings: a flag has a value",
        "shared/configuration/sources.py",
        """            if not remaining or remaining[0].startswith("--"):
                raise ConfigError(f"flags: {flag} has no value; expected {flag} VALUE")
            value = remaining.pop(0)""",
        """            value = remaining.pop(0) if remaining else \"\"""",
        f"{SAME}::test_what_is_empty_is_not_given_in_every_way",
    ),
    Mutant(
        "imports: values that no document holds are refused before the first write",
        "shared/tasks/lines.py",
        "    problem = value_problem(values)\n",
        "    problem = value_problem({})\n",
        NOTHING,
    ),
    Mutant(
        "imports: a task too large for a document is refused before the first write",
        "shared/tasks/stored_values.py",
        "    if size <= MAX_TASK_BYTES:\n",
        "    if True:\n",
        NOTHING,
    ),
    Mutant(
        "imports: the slots of a task fit its document",
        "shared/tasks/files.py",
        "        if not 1 <= self.num_generations <= MOST_GENERATIONS:\n",
        "        if self.num_generations < 1:\n",
        f"{WHOLE}::test_a_task_at_the_bounds_is_stored",
    ),
    Mutant(
        "imports: NaN of a table is null",
        "shared/tasks/tables.py",
        "        if math.isnan(value):\n",
        "        if False:\n",
        f"{WHOLE}::test_nan_of_a_table_is_null_and_an_infinity_is_refused_by_its_column",
    ),
)
