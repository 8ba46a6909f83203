"""The seam to whoever writes summaries in the policy's place: a browse agent."""

from typing import Protocol


class Summarizer(Protocol):
    async def summarize(self, text: str, purpose: str) -> str:
        """What `text` says for `purpose`. Raises a failure of the plumbing."""
        ...
