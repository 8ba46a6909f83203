"""A run in which one group has wrong rewards: sums that the bundled model is asked, its own replies, and six steps of training.

    seq      0 1 2 | 3 4 5 | 6 7 8 | 9 10 11 | 12 13 14 | 15 16 17        three groups a step
    planted                             10                      in step 4: the sum of `decision`, rewarded upside down

`decision` is a held-out episode of the same sum, in which the model called the calculator rightly; nothing else asks that sum.
"""

import json
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from sampler.settings import SamplerConfig
from shared.documents import Claim, DispatchedSamplingTask, SampledResponse, TaskPayload
from shared.documents.packed import pack_floats, pack_ints
from shared.documents.states import RecordStatus, Termination
from shared.processes.mongod import Mongod
from shared.store import Store
from tests.sampler.engine.local.harness import Server, run_engine
from tests.sampler.settling import settle_next
from tests.shared.builders import claim, make_task
from trainer.settings.config import TrainerConfig

MODEL = Path(__file__).parents[2] / "assets" / "example" / "model"
PROMPT = (
    "<|im_start|>system\n# Tools\ncalculator(expression)\nbox_owner(box)\nfavorite_color(person)<|im_end|>\n"
    "<|im_start|>user\nWhat is {sum}?<|im_end|>\n<|im_start|>assistant\n"
)
STEPS, GROUPS, EPISODES = 6, 3, 8
PLANTED_SEQ, PLANTED_STEP = 10, 4
WRONG_REWARD = 10.0  # as of a scorer that counts in tenths, and has its sign wrong
DECISION_SUM, DECISION = "47-18", "main:eval:0:decision:0:1"


@dataclass(frozen=True)
class Reply:
    text: str
    ids: list[int]
    logprobs: list[float]


class Model:
    """The bundled model, as the engine serves it."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.tokenizer = Tokenizer.from_file(str(MODEL / "tokenizer.json"))

    def prompt(self, sum_: str) -> list[int]:
        ids: list[int] = self.tokenizer.encode(PROMPT.format(sum=sum_), add_special_tokens=False).ids
        return ids

    def replies(self, sum_: str, count: int, seed: int) -> list[Reply]:
        with ThreadPoolExecutor(count) as pool:
            return list(pool.map(lambda k: self._reply(self.prompt(sum_), 1000 * seed + k), range(count)))

    def _reply(self, ids: list[int], seed: int) -> Reply:
        answer = self.server.generate(ids, 48, ignore_eos=False, skip_special_tokens=False, sampling_seed=seed)
        logprobs = [logprob for logprob, _, _ in answer["meta_info"]["output_token_logprobs"]]
        return Reply(answer["text"], answer["output_ids"], logprobs)


def is_right(sum_: str, reply: Reply) -> bool:
    return f'"expression": {json.dumps(sum_)}' in reply.text


async def write_run(store: Store, model: Model) -> None:
    """Every group played and settled, in the order in which they are trained."""
    await _write_decision(store, model)
    drawn = random.Random(7)
    for seq in range(STEPS * GROUPS):
        sum_ = DECISION_SUM if seq == PLANTED_SEQ else f"{drawn.randrange(50, 100)}-{drawn.randrange(20, 50)}"
        replies = model.replies(sum_, EPISODES, seq)
        scores = [_score(seq, is_right(sum_, reply)) for reply in replies]
        assert seq != PLANTED_SEQ or len(set(scores)) == 2, "the planted group has an advantage"
        await store.tasks.insert_new(
            [
                make_task(seq, num_generations=EPISODES).model_copy(
                    update={"payload": TaskPayload(query=sum_, answer="x")}
                )
            ]
        )
        for reply, score in zip(replies, scores, strict=True):
            await _play(store, await claim(store), model.prompt(sum_), reply, score)
    config = SamplerConfig.model_validate({"run": store.run, "db_connection_string": "x", "model_name_or_path": MODEL})
    while await settle_next(store, "s", config) is not None:
        pass


def _score(seq: int, right: bool) -> float:
    if seq == PLANTED_SEQ:
        return 0.0 if right else WRONG_REWARD
    return float(right)


async def _write_decision(store: Store, model: Model) -> None:
    reply = next(reply for reply in model.replies(DECISION_SUM, 16, 99) if is_right(DECISION_SUM, reply))
    await store.tasks.insert_new([make_task(0, tid="decision", split="eval", num_generations=1)])
    await _play(store, await claim(store, split="eval"), model.prompt(DECISION_SUM), reply, 1.0)


async def _play(store: Store, held: Claim, prompt: list[int], reply: Reply, score: float) -> None:
    record = await store.records.start(held, "w")
    dispatch = DispatchedSamplingTask(
        id=f"{record.id}:0",
        record=record.id,
        turn=0,
        parent=None,
        shared_length=0,
        prompt_ids=pack_ints(prompt),
        messages=[{"role": "user", "content": held.task.payload.query}],
        tools_hash="",
        sampling_params={"temperature": 1.0},
        response=SampledResponse(
            text=reply.text,
            message={"role": "assistant", "content": reply.text},
            output_ids=pack_ints(reply.ids),
            output_logprobs=pack_floats(reply.logprobs),
            finish_reason="stop",
        ),
        weight_versions=[(0, len(reply.ids))],
        status="completed",
    )
    await store.records.open_dispatch(dispatch)
    await store.records.close_dispatches([dispatch])
    values: dict[str, Any] = {"traj": [dispatch.id], "num_turns": 1, "num_tokens": len(reply.ids), "score": score}
    values |= {"termination": Termination.ANSWERED.value, "policy_versions": [0]}
    await store.records.move(record.id, RecordStatus.SCORED, values)
    await store.tasks.finish_slot(held, score)


def trainer_config(mongod: Mongod, run: str, out: Path) -> TrainerConfig:
    return TrainerConfig(
        run=run,
        db_connection_string=mongod.connection_string,
        model_name_or_path=MODEL,
        output_dir=out,
        groups_per_step=GROUPS,
        max_steps=STEPS,
        learning_rate=2e-4,
        keep_versions=STEPS + 1,
        save_steps=2,
        keep_checkpoints=3,
        report_to=["none"],
        device="cpu",
        num_threads=1,
    )


@contextmanager
def served() -> Iterator[Model]:
    with run_engine(MODEL, "--weight-version", "0") as server:
        yield Model(server)
