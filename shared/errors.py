"""Every error this project raises on purpose, as one tree.

TandemError
├── ConfigError          the user's input is wrong: say what was found, what was expected, what to do
├── DataError            a document or file contradicts itself
├── LeaseLost            another worker owns this slot now: drop the work, never retry the write
├── IllegalMove          a document was asked for a state it cannot reach
└── StoreUnavailable     the database did not answer in time
"""


class TandemError(Exception):
    """Base of everything this project raises on purpose."""


class ConfigError(TandemError, ValueError):
    """Configuration, flags or a data file are wrong; the message says how to mend them."""


class DataError(TandemError):
    """Stored data or a file contradicts itself (a checksum, a length, a missing document)."""


class LeaseLost(TandemError):
    """Another worker owns this document now. Drop the work; a retry can never succeed."""


class IllegalMove(TandemError):
    """A document was asked to move between states that are not connected."""


class StoreUnavailable(TandemError):
    """MongoDB did not answer in time; the connection string is in the message."""
