"""One episode that sees a screenshot in every turn: what it stores, sends to engines, and costs the sampler.

    python -m scripts.bench.image_episodes [--screenshots 50] [--width 1024] [--height 768] [--json F] [--quick]

MongoDB, the store, the rendering and the decoding are real; the engine answers at once, and replies with the same few tokens. The
model's settings are those of Qwen2.5-VL. `stored`: bytes of the documents, by collection, and of an image on disk. `a turn`: what
the sampler's processes use, decoders included; a new screenshot in each turn, and all earlier ones in its prompt.
"""

import io
import json
import os
import shutil
import statistics
from pathlib import Path

import httpx
import psutil
from PIL import Image, ImageDraw

from sampler.core.engines.client.engine_client import EngineClient
from sampler.core.engines.pool.engine_pool import EnginePool
from sampler.core.episode.episode import play
from sampler.core.episode.resources import Resources
from sampler.core.episode.sampler import AsyncSampler
from sampler.core.parsers import get_parser
from sampler.core.rendering.template import ChatTemplate
from sampler.core.scorers import Score
from sampler.core.tools import ToolCatalog
from sampler.settings import SamplerConfig
from scripts.bench.harness import Options, Row, Tables, command_line, run_benchmark
from scripts.bench.processes import ROOT, cpu_s
from shared.documents import Claim, Slot, Task, TaskPayload, task_id
from shared.documents.run import InferenceService
from shared.documents.states import ServiceStatus, Termination
from shared.processes.mongod import Mongod
from shared.store import Store
from shared.store.pipelines import EPOCH

EXAMPLE = ROOT / "assets" / "example" / "model"
TOKENS = ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>")
URL = "http://engine"
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.content is string %}{{ m.content }}{% else %}"
    "{% for part in m.content %}{% if part.type == 'image' %}<|vision_start|><|image_pad|><|vision_end|>{% else %}"
    "{{ part.text }}{% endif %}{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def screenshot(number: int, width: int, height: int) -> bytes:
    """A page of text, each another one."""
    page = Image.new("RGB", (width, height), "white")
    draw = ImageDraw.Draw(page)
    draw.rectangle((0, 0, width, 40), fill=(40, 80, 160))
    for line in range(5, height // 16):
        draw.text((20, 16 * line), f"{number * 7919 + line * 104729:x} line {line} of page {number} " * 6, fill="black")
    file = io.BytesIO()
    page.save(file, "PNG")
    return file.getvalue()


def vision_model(folder: Path) -> Path:
    """A tokenizer with image tokens, and the settings of a published model. No weights."""
    shutil.copytree(EXAMPLE, folder, ignore=shutil.ignore_patterns("*.safetensors"))
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    first = max(token["id"] for token in tokenizer["added_tokens"]) + 1
    first = max(first, len(tokenizer["model"]["vocab"]))
    like = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    tokenizer["added_tokens"] += [{"id": first + at, "content": text, **like} for at, text in enumerate(TOKENS)]
    config = {"model_type": "qwen2_5_vl", "image_token_id": first + 2, "vision_config": {"patch_size": 14}}
    settings = {
        "image_processor_type": "Qwen2VLImageProcessor",
        "patch_size": 14,
        "size": {"shortest_edge": 3136, "longest_edge": 12845056},
    }
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "preprocessor_config.json").write_text(json.dumps(settings))
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return folder


class Engine:
    """Answers with the same reply, and with the prompt that a model would have read."""

    def __init__(self, template: ChatTemplate, height: int, width: int) -> None:
        self.sent_bytes: list[int] = []
        assert template.images is not None, "a model that sees"
        self._placeholder = template.images.placeholder
        self._features = template.images.family.features(height, width)
        self._reply = [*template.encode("next page"), template.token_id("<|im_end|>") or 0]

    async def __call__(self, request: httpx.Request) -> httpx.Response:
        self.sent_bytes.append(len(request.content))
        body = json.loads(request.content)
        prompt: list[int] = []
        for token in body["input_ids"]:
            prompt += [token] * (self._features if token == self._placeholder else 1)
        meta = {
            "finish_reason": {"type": "stop", "matched": self._reply[-1]},
            "prompt_tokens": len(prompt),
            "cached_tokens": 0,
            "weight_version": "0",
            "output_token_logprobs": [[-0.1, token, None] for token in self._reply],
        }
        return httpx.Response(200, json={"output_ids": self._reply, "prompt_token_ids": prompt, "meta_info": meta})


class Browsing(AsyncSampler):
    """Receives a screenshot in each turn."""

    def __init__(self, resources: Resources, claim: Claim, options: Options) -> None:
        super().__init__(resources, claim)
        self.cpu_s: list[float] = []
        self._pages = [screenshot(number, options.width, options.height) for number in range(options.screenshots)]

    async def run(self) -> Termination:
        for number, data in enumerate(self._pages):
            used = all_cpu_s()
            blocks = [{"type": "text", "text": f"page {number}"}, {"type": "image", "bytes": data}]
            turn = await self.create_chat_completions([{"role": "user", "content": blocks}])
            assert turn is not None, "the prompt has room"
            self.cpu_s.append(all_cpu_s() - used)
        return Termination.ANSWERED

    async def evaluate_record(self) -> Score:
        return Score(1.0)


def all_cpu_s() -> float:
    return sum(cpu_s(pid) for pid in (os.getpid(), *(child.pid for child in psutil.Process().children())))


async def measure(options: Options) -> Tables:
    template = ChatTemplate.from_dir(vision_model(options.folder / "model"))
    engine = Engine(template, options.height, options.width)
    with Mongod(options.folder / "mongodb") as mongod:
        async with Store.open(mongod.connection_string, "bench") as store:
            sampler = await played(store, template, engine, options)
            turns = {"screenshots": options.screenshots, **a_turn(sampler, engine)}
            return {"stored": await stored(store, options.screenshots), "a turn": [turns]}


async def played(store: Store, template: ChatTemplate, engine: Engine, options: Options) -> Browsing:
    """After its episode."""
    slots = [Slot(traj_id=0, free_at=EPOCH)]
    task = Task(
        id=task_id("main", "train", 0, "t"),
        tid="t",
        split="train",
        epoch=0,
        policy="main",
        seq=0,
        source="bench",
        payload=TaskPayload(query="browse"),
        num_generations=1,
        slots=slots,
        free_at=EPOCH,
    )
    await store.tasks.insert_new([task])
    [held] = await store.tasks.claim_slots(
        "w", policy="main", split="train", lease_s=600.0, seq_limit=None, max_failures=1
    )
    service = InferenceService(
        id=URL, url=URL, policy="main", version=0, status=ServiceStatus.UP, capacity=64, heartbeat_s=3600
    )
    config = SamplerConfig.model_validate(
        {
            "run": "bench",
            "db_connection_string": "x",
            "model_name_or_path": options.folder / "model",
            "max_tokens": 1_000_000,
            "max_prompt_tokens": 1_000_000,
        }
    )

    async def services() -> list[InferenceService]:
        return [service]

    async with EngineClient(transport=httpx.MockTransport(engine)) as client:
        pool = EnginePool(client, services)
        shared = Resources(store, config, "w", template, pool, [], ToolCatalog(), get_parser("hermes"))
        await shared.images.kept(screenshot(-1, 64, 64), "first")  # starts a decoder
        sampler = Browsing(shared, held, options)
        await play(sampler)
        await pool.close()
    return sampler


def a_turn(sampler: Browsing, engine: Engine) -> Row:
    tenth = max(1, len(sampler.cpu_s) // 10)
    return {
        "first CPU ms": 1000 * statistics.median(sampler.cpu_s[:tenth]),
        "last CPU ms": 1000 * statistics.median(sampler.cpu_s[-tenth:]),
        "first sent MB": engine.sent_bytes[0] / 1e6,
        "last sent MB": engine.sent_bytes[-1] / 1e6,
    }


async def stored(store: Store, screenshots: int) -> list[Row]:
    rows: list[Row] = []
    for name in ("images", "dispatched_sampling_tasks", "records", "tasks"):
        of = await store.database.command("collStats", name)
        rows.append(
            {
                "collection": name,
                "documents": of["count"],
                "KB": of["size"] / 1000,
                "KB a screenshot": of["size"] / 1000 / screenshots,
            }
        )
    return rows


if __name__ == "__main__":
    parser = command_line(__doc__)
    parser.add_argument("--screenshots", type=int, default=50)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--height", type=int, default=768)
    run_benchmark(parser, measure, screenshots=3, width=224, height=168)
