"""A scripted engine whose log-probs are those of the bundled model, and the trainer's check of what was recorded from it."""

from typing import Any

import httpx
import torch
from transformers import AutoModelForCausalLM

from shared.store import Store
from shared.weights.files import manifest_of
from tandem.what_if.verify import VerifyConfig, verify
from tests.sampler.engines import answer
from tests.sampler.episodes import MODEL
from tests.sampler.gateway.agents import ScriptedEngine
from tests.sampler.settling import settle_next


class ModelScoredEngine(ScriptedEngine):
    """The log-prob of each token is the bundled model's after exactly the ids that the engine was sent."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._model = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32).eval()

    @torch.inference_mode()
    def _answer(self, prompt: list[int], ids: list[int], finish: dict[str, Any]) -> httpx.Response:
        hidden = self._model.model(input_ids=torch.tensor([[*prompt, *ids]])).last_hidden_state
        scores = self._model.lm_head(hidden[0, len(prompt) - 1 : -1]).log_softmax(-1)
        logprobs = scores.gather(1, torch.tensor(ids)[:, None])[:, 0].tolist()
        return answer(ids, finish, version="0", prompt_tokens=len(prompt), logprobs=logprobs)


async def verified(store: Store, config: Any) -> tuple[int, float]:
    """What `tandem verify` finds in the records of the run: sampled tokens, and the largest difference in nats."""
    await store.runs.ensure()
    await store.versions.announce("main", 0, str(MODEL), manifest_of(MODEL))
    while await settle_next(store, "w", config) is not None:
        pass
    (found,) = await verify(store, VerifyConfig(run=store.run, db_connection_string="given"))
    return found.tokens, found.largest_difference
