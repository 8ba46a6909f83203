"""docs/reference/settings.md is what the settings' models say."""

from scripts.settings_page import PAGE, SERVICES, page
from shared.configuration.sections import settings_of


def test_the_page_of_settings_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "python -m scripts.settings_page writes it"


def test_the_page_has_every_setting_of_every_service_once_and_what_it_means() -> None:
    for service, part in zip(SERVICES, page().split("\n## ")[1:], strict=True):
        rows = [line.split(" | ") for line in part.splitlines() if line.startswith("| `")]
        assert sorted(row[0] for row in rows) == sorted(f"| `{name}`" for name in settings_of(service))
        assert all(row[-1].strip(" |") for row in rows), "a setting without a meaning"
