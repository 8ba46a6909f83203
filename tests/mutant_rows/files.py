"""Protections of files: who may read what our commands write, and whose packages a program takes."""

from tests.mutant_rows.mutant import Mutant

PRIVATE = "tests/test_private_files.py"

MUTANTS = (
    Mutant(
        "files: a private file is created with mode 0600",
        "shared/files/private_file.py",
        "MODE = 0o600",
        "MODE = 0o644",
        f"{PRIVATE}::test_the_helpers_create_what_nobody_else_can_read",
    ),
    Mutant(
        "files: a private text is not written through a link",
        "shared/files/private_file.py",
        "_FLAGS | os.O_TRUNC | os.O_NOFOLLOW",
        "_FLAGS | os.O_TRUNC",
        f"{PRIVATE}::test_the_helpers_create_what_nobody_else_can_read",
    ),
    Mutant(
        "files: a whole file is private unless it is public",
        "shared/files/written_file.py",
        "            if public:\n",
        "            if True:\n",
        "tests/shared/test_private_folder.py"
        "::test_a_written_file_is_readable_for_its_user_alone_and_a_public_one_as_any_other_of_the_user",
    ),
    Mutant(
        "files: the embedded database's folder is private",
        "shared/processes/mongod.py",
        "        make_private_folder(self.folder)",
        "        self.folder.mkdir(parents=True, exist_ok=True)",
        f"{PRIVATE}::test_the_embedded_database_and_a_services_log_are_private",
    ),
    Mutant(
        "files: an agent's kept folder is private",
        "sampler/gateway/workplace.py",
        "    make_private_folder(folder)\n",
        "    folder.mkdir(parents=True, exist_ok=True)\n",
        f"{PRIVATE}::test_an_agents_kept_folder_is_private",
    ),
    Mutant(
        "files: a user's module gets the packages of its own project",
        "shared/user_code/loading.py",
        "    project = project_of(str(path))\n",
        "    project = None\n",
        "tests/test_any_folder.py::test_a_users_module_gets_the_packages_of_its_project_and_ours_for_what_those_lack",
    ),
    Mutant(
        "files: who plays is not given the right answer",
        "sampler/gateway/attempts.py",
        'exclude=None if answers else {"answer"}',
        "exclude=None",
        "tests/sampler/gateway/test_given_answers.py::test_a_claim_has_the_answer_only_where_the_gateway_gives_it",
    ),
    Mutant(
        "files: a failed import makes no run",
        "scripts/tandem/commands/connect.py",
        "create=must_exist",
        "create=True",
        "tests/tandem/commands/test_cli_import.py::test_a_failed_import_leaves_no_run",
    ),
    Mutant(
        "files: an export of nothing is refused",
        "shared/store/data_file.py",
        "        if not groups:\n",
        "        if False:\n",
        "tests/tandem/commands/test_cli_import.py::test_commands_on_a_run_without_anything_say_so",
    ),
    Mutant(
        "files: of two columns of one name none is lost",
        "shared/tasks/tables.py",
        "if names.count(name) > 1",
        "if False",
        "tests/shared/test_task_tables.py::test_of_two_values_of_one_field_none_is_lost",
    ),
)
