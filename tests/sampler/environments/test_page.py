"""docs/bring/environments.md: its environment is served as it stands there."""

import re
from pathlib import Path

from tests.sampler.environments.services import service

PAGE = Path(__file__).parents[3] / "docs" / "bring" / "environments.md"


def test_the_pages_environment_is_played(tmp_path: Path) -> None:
    (block,) = re.findall(r"test_page\.py -->\n```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    path = tmp_path / "guess.py"
    path.write_text(block, encoding="utf-8")
    with service("--workers", "1", "--environments", f"guess={path}:Guess") as one:
        session, _ = one.start("guess", 7)
        assert one.say(session, "3").json()["reward"] == -0.1
        assert one.say(session, "7").json()["reward"] == 1.0
