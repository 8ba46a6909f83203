"""A prepared reply of the stub engine, in SGLang's form, whole or as the events of a stream."""

import json
from dataclasses import dataclass
from functools import cached_property


@dataclass(frozen=True)
class PreparedReply:
    """Cut where the prompt's length and the weight version belong."""

    head: bytes
    tail: bytes
    ids: list[int]
    logprobs: list[float]

    def body(self, prompt_tokens: int, version: str) -> bytes:
        label = version.encode()
        return b'%s"prompt_tokens": %d, "cached_tokens": %d, "weight_version": "%s", %s' % (
            self.head, prompt_tokens, max(0, prompt_tokens - 1), label, self.tail.replace(b"@", label)
        )  # fmt: skip

    def event(self, tokens: int, prompt_tokens: int, version: str) -> bytes:
        """Of a stream, after so many tokens."""
        return (
            b'data: {"text": "", "output_ids": [%s], "meta_info": {"finish_reason": null, "prompt_tokens": %d, '
            b'"weight_version": "%s", "completion_tokens": %d, "output_token_logprobs": [%s]}}\n\n'
        ) % (
            b", ".join(self._id_texts[:tokens]),
            prompt_tokens,
            version.encode(),
            tokens,
            b", ".join(self._pairs[:tokens]),
        )

    @cached_property
    def _id_texts(self) -> list[bytes]:
        return [b"%d" % token for token in self.ids]

    @cached_property
    def _pairs(self) -> list[bytes]:
        return [json.dumps([score, token, None]).encode() for score, token in zip(self.logprobs, self.ids, strict=True)]


def prepared_reply(ids: list[int], logprobs: list[float]) -> PreparedReply:
    head = b'{"text": "", "output_ids": %s, "meta_info": {' % json.dumps(ids).encode()
    tail = json.dumps(
        {
            "finish_reason": {"type": "stop", "matched": ids[-1]},
            "completion_tokens": len(ids),
            "output_token_logprobs": [[score, token, None] for score, token in zip(logprobs, ids, strict=True)],
            "weight_versions": [{"version": "@", "start": 0, "end": len(ids)}],
        }
    )
    return PreparedReply(head, tail[1:].encode() + b"}", ids, logprobs)
