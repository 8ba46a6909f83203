"""The routes that change weights: from disk, by broadcast, their label, adapters; and those that release and resume memory."""

from __future__ import annotations

import asyncio
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from sampler.engine.api.errors import bad_weights, field
from sampler.engine.api.routed import CONTROL_S, Routed, json_body
from sampler.engine.api.served import Announced, GroupPlace, ServedEngine

DTYPES = frozenset((  # of torch, in which weights come
    "float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "int64", "int32", "int16", "int8", "uint8",
    "bool",
))  # fmt: skip


async def update_weights_from_disk(engine: ServedEngine, request: Request) -> Response:
    body = await json_body(request)
    message = await engine.update_weights(
        field(body, "model_path", str),
        field(body, "weight_version", str, None),
        flush_cache=field(body, "flush_cache", bool, True),
        abort_all=field(body, "abort_all_requests", bool, False),
    )
    return JSONResponse({"success": True, "message": message, "num_paused_requests": 0})


async def init_weights_update_group(engine: ServedEngine, request: Request) -> Response:
    body = await json_body(request)
    return _changed(
        await engine.join_group(
            GroupPlace(
                address=field(body, "master_address", str),
                port=field(body, "master_port", int),
                rank=field(body, "rank_offset", int),
                size=field(body, "world_size", int),
                name=field(body, "group_name", str, "weight_update_group"),
                backend=field(body, "backend", str, "nccl"),
            )
        )
    )


async def destroy_weights_update_group(engine: ServedEngine, request: Request) -> Response:
    return _changed(await engine.leave_group(field(await json_body(request), "group_name", str, "weight_update_group")))


async def begin_weight_update(engine: ServedEngine, request: Request) -> Response:
    await json_body(request)
    return _changed(await engine.begin_update())


async def end_weight_update(engine: ServedEngine, request: Request) -> Response:
    await json_body(request)
    return _changed(await engine.end_update())


async def update_weights_from_distributed(engine: ServedEngine, request: Request) -> Response:
    body = await json_body(request)
    names, dtypes, shapes = (field(body, key, list) for key in ("names", "dtypes", "shapes"))
    what = _announced(names, dtypes, shapes, field(body, "load_format", str, None))
    message = await engine.update_from_group(
        field(body, "group_name", str, "weight_update_group"),
        what,
        field(body, "weight_version", str, None),
        flush_cache=field(body, "flush_cache", bool, True),
    )
    return _changed(message)


def _announced(names: list[Any], dtypes: list[Any], shapes: list[Any], load_format: str | None) -> Announced:
    """Raises ApiError if they do not describe tensors."""
    if load_format not in (None, "flattened_bucket"):
        raise bad_weights(
            f"Failed to receive weights: Unknown load_format={load_format}; expected flattened_bucket or none"
        )
    known = all(isinstance(dtype, str) and dtype in DTYPES for dtype in dtypes)
    if not names or not len(names) == len(dtypes) == len(shapes) or not known:
        raise bad_weights(
            f"Failed to receive weights: {len(names)} names, {len(shapes)} shapes and the types "
            f"{sorted(set(map(str, dtypes)))} are no tensors"
        )
    if not all(isinstance(shape, list) and all(type(n) is int and n >= 0 for n in shape) for shape in shapes):
        raise bad_weights("Failed to receive weights: a shape is no list of whole numbers from 0 on")
    return Announced([str(name) for name in names], dtypes, shapes, load_format is not None)


def _changed(message: str) -> Response:
    return JSONResponse({"success": True, "message": message})


async def update_weight_version(engine: ServedEngine, request: Request) -> Response:
    body = await json_body(request)
    version = field(body, "new_version", str)
    if field(body, "abort_all_requests", bool, True):
        await asyncio.wait_for(engine.abort(None, abort_all=True), CONTROL_S)
    await asyncio.wait_for(engine.set_version(version), CONTROL_S)
    answer = {"success": True, "message": f"Weight version updated to {version}", "new_version": version}
    return JSONResponse(answer)


async def get_weights_by_name(engine: ServedEngine, request: Request) -> Response:
    """The first rows of one parameter, as float32. (SGLang 0.5.23 supports it only for Llama-like classes.)"""
    body = await json_body(request)
    rows = await engine.weights_by_name(field(body, "name", str), field(body, "truncate_size", int, 100))
    if rows is None:
        return JSONResponse({"error": {"message": "Get parameter by name failed"}}, 400)
    return JSONResponse(rows)


async def weights_checker(engine: ServedEngine, request: Request) -> Response:
    action = field(await json_body(request), "action", str)
    if action != "checksum":
        raise bad_weights(f"action is {action!r}; expected checksum")
    return JSONResponse({"per_engine_checksum": await engine.checksum()})


async def load_lora_adapter(engine: ServedEngine, request: Request) -> Response:
    body = await json_body(request)
    await engine.load_adapter(field(body, "lora_name", str), field(body, "lora_path", str))
    return _adapters(engine)


async def unload_lora_adapter(engine: ServedEngine, request: Request) -> Response:
    await engine.unload_adapter(field(await json_body(request), "lora_name", str))
    return _adapters(engine)


def _adapters(engine: ServedEngine) -> Response:
    return JSONResponse({"success": True, "error_message": None, "loaded_adapters": engine.adapters()})


async def release_memory_occupation(engine: ServedEngine, request: Request) -> Response:
    """Free the KV cache and the weights' memory. Unlike SGLang, which crashes, it refuses while requests hold the cache."""
    tags = field(await json_body(request), "tags", list, None)
    await asyncio.wait_for(engine.release_memory(tags), CONTROL_S)
    return JSONResponse(None)


async def resume_memory_occupation(engine: ServedEngine, request: Request) -> Response:
    """Allocate what was released. The weights have no values until the next update."""
    tags = field(await json_body(request), "tags", list, None)
    await asyncio.wait_for(engine.resume_memory(tags), CONTROL_S)
    return JSONResponse(None)


WEIGHT_ROUTES: list[Routed] = [
    ("/update_weights_from_disk", update_weights_from_disk, ["POST"]),
    ("/init_weights_update_group", init_weights_update_group, ["POST"]),
    ("/destroy_weights_update_group", destroy_weights_update_group, ["POST"]),
    ("/begin_weight_update", begin_weight_update, ["POST"]),
    ("/end_weight_update", end_weight_update, ["POST"]),
    ("/update_weights_from_distributed", update_weights_from_distributed, ["POST"]),
    ("/update_weight_version", update_weight_version, ["POST"]),
    ("/get_weights_by_name", get_weights_by_name, ["GET", "POST"]),
    ("/weights_checker", weights_checker, ["POST"]),
    ("/load_lora_adapter", load_lora_adapter, ["POST"]),
    ("/unload_lora_adapter", unload_lora_adapter, ["POST"]),
    ("/release_memory_occupation", release_memory_occupation, ["GET", "POST"]),
    ("/resume_memory_occupation", resume_memory_occupation, ["GET", "POST"]),
]
