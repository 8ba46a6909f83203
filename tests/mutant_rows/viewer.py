"""Protections of the viewer: who may ask, and what is shown."""

from tests.mutant_rows.mutant import Mutant

NOTES = "tests/tandem/viewer/test_notes.py"
CHROMIUM = "tests/tandem/viewer/test_in_chromium.py"
APP = "tests/tandem/viewer/test_viewer_app.py"

EPISODES = "tests/tandem/viewer/test_episode_pages.py"
LARGE = "tests/tandem/viewer/test_large_runs.py"
BIAS = "tests/tandem/test_selection_bias.py"

INCOMPLETE = "tests/tandem/viewer/test_incomplete_runs.py"

MUTANTS = (
    Mutant(
        "pictures: Chromium's sockets have short paths",
        "scripts/chromium.py",
        'plain_environment() | {"TMPDIR": SHORT_FOLDER}',
        "plain_environment()",
        "tests/tandem/viewer/test_chromium_start.py::test_a_folder_for_temporary_files_with_a_long_path_is_no_obstacle",
    ),
    Mutant(
        "viewer: log-probs of an undone step are not shown",
        "scripts/tandem/viewer/trained_tokens.py",
        'and survives(document["step"], document["trainer_generation"], starts)',
        "and starts is not None",
        "tests/tandem/viewer/test_forks_and_resumes.py::test_log_probs_of_a_step_that_a_resume_undid_are_not_shown",
    ),
    Mutant(
        "viewer: a token is found by its place in the whole context",
        "scripts/tandem/viewer/tokens.py",
        "trained=trained.at(turn.shared + first + k, logprob),",
        "trained=trained.at(first + k, logprob),",
        f"{EPISODES}::test_a_token_says_what_the_documents_have_and_what_they_do_not",
    ),
    Mutant(
        "viewer: a copy without indexes is shown",
        "shared/store/indexes.py",
        "if NO_SUCH_INDEX not in str(exc):",
        "if exc:",
        f"{INCOMPLETE}::test_every_page_of_an_incomplete_run_answers_without_an_empty_frame",
    ),
    Mutant(
        "an index that is there is named to the server",
        "shared/store/indexes.py",
        'return await ask({"hint": name})',
        "return await ask({})",
        "tests/shared/test_missing_indexes.py::test_a_missing_index_changes_no_answer",
    ),
    Mutant(
        "a start waits for a long build of an index",
        "shared/store/indexes.py",
        "with pymongo.timeout(LONGEST_BUILD_S):",
        "if True:",
        "tests/shared/test_long_index_builds.py::test_a_start_waits_for_a_long_build",
    ),
    Mutant(
        "a server that does not answer is not waited for",
        "shared/store/indexes.py",
        "number = await collection.estimated_document_count()  # raises if it is the server that does not answer",
        "number = 0",
        "tests/shared/test_long_index_builds.py::test_a_server_that_answers_nothing_is_not_waited_for",
    ),
    Mutant(
        "ledger: nothing compared is no good news",
        "scripts/tandem/viewer/ledger.py",
        "tested=sum(side.comparison.p is not None for side in sides)",
        "tested=len(sides)",
        f"{INCOMPLETE}::test_a_page_says_what_is_missing",
    ),
    Mutant(
        "viewer: turns that are gone are named",
        "scripts/tandem/viewer/rollout.py",
        "lost = [name for name in record.traj if name not in stored]",
        "lost = []",
        f"{INCOMPLETE}::test_a_page_says_what_is_missing",
    ),
    Mutant(
        "viewer: a text of the search is no pattern",
        "shared/store/views/rollouts.py",
        'whole = {"$regex": _literally(self.text), "$options": "i"}',
        'whole = {"$regex": self.text, "$options": "i"}',
        f"{EPISODES}::test_the_search_finds_what_fits_and_its_query_finds_the_same",
    ),
    Mutant(
        "ledger: a few trained groups say nothing",
        "scripts/tandem/evaluation/selection_bias.py",
        "if trained_groups < LEAST_GROUPS:",
        "if trained_groups < 0:",
        "tests/shared/test_ledger_alarms.py::test_groups_that_are_drawn_by_lot_alarm_no_more_often_than_is_said",
    ),
    Mutant(
        "ledger: groups share their fate",
        "scripts/tandem/evaluation/selection_bias.py",
        "statistic = float(((d_K * scale_K) ** 2).sum()) / (squares / total)",
        "statistic = float(((d_K * scale_K) ** 2).sum()) * trained_GK.sum()",
        f"{BIAS}::test_a_fair_selection_rings_about_as_often_as_it_says",
    ),
    Mutant(
        "viewer: a page with another name may not ask",
        "scripts/tandem/viewer/guard.py",
        "if _host_name(host) not in LOOPBACK_HOSTS:",
        "if not host:",
        f"{APP}::test_a_page_with_another_name_may_not_ask",
    ),
    Mutant(
        "viewer: every request needs the token",
        "scripts/tandem/viewer/guard.py",
        "elif not any(",
        'elif scope["path"] != "/runs.json" and not any(',
        f"{APP}::test_with_a_token_every_request_needs_it",
    ),
    Mutant(
        "viewer: a form of another site writes nothing",
        "scripts/tandem/viewer/guard.py",
        "return origin is None or ",
        "return True or origin is None or ",
        f"{NOTES}::test_a_form_of_another_site_writes_nothing",
    ),
    Mutant(
        "viewer: only forms of notes and views are taken",
        "scripts/tandem/viewer/guard.py",
        'if scope["method"] not in METHODS and not is_form:',
        'if scope["method"] not in METHODS and scope["method"] != "POST":',
        f"{NOTES}::test_everything_else_is_read_only",
    ),
    Mutant(
        "viewer: a form is bounded before it is read",
        "scripts/tandem/viewer/notes.py",
        "if len(body) > MAX_FORM_BYTES:",
        "if len(body) > 1 << 30:",
        f"{NOTES}::test_a_wrong_form_is_refused_with_what_was_expected",
    ),
    Mutant(
        "viewer: a saved view leads to a page of the run",
        "scripts/tandem/viewer/notes.py",
        "if path and (path[0]",
        "if not path and (path[0]",
        f"{NOTES}::test_a_wrong_form_is_refused_with_what_was_expected",
    ),
    Mutant(
        "viewer: what is being written survives the news",
        "scripts/tandem/viewer/static/live.js",
        "if (inUse(region)) { waiting = true; continue; }",
        "",
        f"{CHROMIUM}::test_a_note_that_is_being_written_survives_the_news",
    ),
    Mutant(
        "viewer: characters that hide text are shown",
        "shared/outside_text.py",
        "\\u2028-\\u202e",
        "\\u2028-\\u2029",
        f"{APP}::test_characters_that_hide_or_turn_text_are_shown_as_codes",
    ),
    Mutant(
        "viewer: of many steps only some are read",
        "shared/store/views/dashboard.py",
        "every = max(1, -(-last // MOST_POINTS))",
        "every = 1",
        "tests/tandem/viewer/test_dashboard.py::test_of_many_steps_every_nth_is_read_and_the_last",
    ),
    Mutant(
        "viewer: a window reads its own versions",
        "shared/store/policies.py",
        'add_index(self._versions, [("created_at", 1)], name="announced")',
        'add_index(self._versions, [("path", 1)], name="announced")',
        f"{LARGE}::test_a_page_of_a_large_run_reads_what_it_shows",
    ),
    Mutant(
        "viewer: a step looks up the first weights that hold it",
        "shared/store/policies.py",
        'add_index(self._versions, [("step", 1), ("policy", 1), ("version", 1)], name="of step")',
        'add_index(self._versions, [("path", 1)], name="of step")',
        f"{LARGE}::test_a_page_of_a_large_run_reads_what_it_shows",
    ),
    Mutant(
        "viewer: a step's metrics are new to an open dashboard",
        "shared/store/views/dashboard.py",
        "for one in (newest, logged, last)), number",
        "for one in (newest, last)), number",
        "tests/tandem/viewer/test_polling.py::test_nothing_new_is_304_and_each_change_is_told_once",
    ),
    Mutant(
        "viewer: a document that breaks a page is named",
        "scripts/tandem/viewer/pages.py",
        "raise await unreadable(page_request, exc) from exc",
        "raise",
        "tests/tandem/viewer/test_unreadable_documents.py::test_ids_of_seven_bytes_are_named_with_their_query",
    ),
    Mutant(
        "viewer: a resume's undone steps are not shown",
        "shared/store/views/dashboard.py",
        "if not _survives(document, starts):",
        "if not starts:",
        "tests/tandem/viewer/test_dashboard.py::test_a_resume_shows_the_steps_that_are_part_of_the_weights",
    ),
)
