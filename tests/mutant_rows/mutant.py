"""A row of the list: one change of one file, and the test that has to fail then."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Mutant:
    """In `file`, `old` (which stands there once) becomes `new`; `test` fails then: `path::name`."""

    name: str
    file: str
    old: str
    new: str
    test: str

    @property
    def test_file(self) -> str:
        return self.test.partition("::")[0]

    @property
    def test_name(self) -> str:
        return self.test.partition("::")[2]
