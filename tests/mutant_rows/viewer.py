"""Protections of the viewer: who may ask, and what is shown."""

from tests.mutant_rows.mutant import Mutant

APP = "tests/shared/viewer/test_viewer_app.py"

MUTANTS = (
    Mutant(
        "viewer: a page with another name may not ask",
        "shared/viewer/guard.py",
        "if _host_name(host) not in LOOPBACK_HOSTS:",
        "if not host:",
        f"{APP}::test_a_page_with_another_name_may_not_ask",
    ),
    Mutant(
        "viewer: every request needs the token",
        "shared/viewer/guard.py",
        "elif not any(",
        'elif scope["path"] != "/runs.json" and not any(',
        f"{APP}::test_with_a_token_every_request_needs_it",
    ),
    Mutant(
        "viewer: characters that hide text are shown",
        "shared/viewer/rendering.py",
        "\\u2028-\\u202e",
        "\\u2028-\\u2029",
        f"{APP}::test_characters_that_hide_or_turn_text_are_shown_as_codes",
    ),
)
