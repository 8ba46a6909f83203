"""A prepared reply of the stub engine: in SGLang's form, whole or as the events of a stream, and as a chat completion."""

import json
from dataclasses import dataclass
from functools import cached_property
from typing import Any


@dataclass(frozen=True)
class PreparedReply:
    """Cut where the prompt's length and the weight version belong."""

    head: bytes
    tail: bytes
    ids: list[int]
    logprobs: list[float]
    text: str

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

    def completion(self, prompt_bytes: int, *, with_logprobs: bool) -> bytes:
        """Of `/v1/chat/completions`, whose prompt nothing tokenizes: `prompt_bytes` stand for its tokens."""
        return self._completions[with_logprobs].replace(b"@@", str(prompt_bytes).encode())

    @cached_property
    def _completions(self) -> tuple[bytes, bytes]:
        """Without log-probs, and with them."""
        content: list[dict[str, Any]] = [
            {"token": f"token_id:{token}", "logprob": score, "bytes": None, "top_logprobs": []}
            for score, token in zip(self.logprobs, self.ids, strict=True)
        ]
        without, complete = (
            json.dumps(_completion(self.text, len(self.ids), some)).encode() for some in (None, content)
        )
        return without.replace(b'"@@"', b"@@"), complete.replace(b'"@@"', b"@@")

    @cached_property
    def _id_texts(self) -> list[bytes]:
        return [b"%d" % token for token in self.ids]

    @cached_property
    def _pairs(self) -> list[bytes]:
        return [json.dumps([score, token, None]).encode() for score, token in zip(self.logprobs, self.ids, strict=True)]


def _completion(text: str, num_tokens: int, logprobs: list[dict[str, Any]] | None) -> dict[str, Any]:
    choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": text}}
    return {
        "id": "chatcmpl-stub",
        "object": "chat.completion",
        "created": 0,
        "model": "policy",
        "choices": [choice | {"logprobs": None if logprobs is None else {"content": logprobs}}],
        "usage": {"prompt_tokens": "@@", "completion_tokens": num_tokens, "total_tokens": "@@"},
    }


def prepared_reply(ids: list[int], logprobs: list[float], text: str) -> PreparedReply:
    """`text`: of a chat completion."""
    head = b'{"text": "", "output_ids": %s, "meta_info": {' % json.dumps(ids).encode()
    tail = json.dumps(
        {
            "finish_reason": {"type": "stop", "matched": ids[-1]},
            "completion_tokens": len(ids),
            "output_token_logprobs": [[score, token, None] for score, token in zip(logprobs, ids, strict=True)],
            "weight_versions": [{"version": "@", "start": 0, "end": len(ids)}],
        }
    )
    return PreparedReply(head, tail[1:].encode() + b"}", ids, logprobs, text)
