"""Logging of a service: one line per event, on standard error, without secrets, including lines of libraries."""

import logging

from shared.configuration.loading import LogLevel
from shared.redaction import redacted

QUIET = ("httpx", "httpx2", "httpcore", "httpcore2", "mcp", "pymongo")  # one line per request would hide ours


def begin_logging(level: LogLevel, where: str = "") -> None:
    """Set up this process's logging. `where` prefixes every message."""
    handler = logging.StreamHandler()
    handler.setFormatter(_WithoutSecrets(f"%(asctime)s %(levelname)s %(name)s {where}%(message)s"))
    logging.basicConfig(level=level, handlers=[handler], force=True)
    for name in QUIET:
        logging.getLogger(name).setLevel(logging.WARNING)


class _WithoutSecrets(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        """Redacts tracebacks too: libraries quote the URLs that they received."""
        line = super().format(record)
        return redacted(line) if "://" in line else line
