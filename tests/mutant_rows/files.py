"""Protections of files: who may read what our commands write."""

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
)
