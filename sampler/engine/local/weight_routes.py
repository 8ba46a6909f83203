"""The routes that change weights: from disk, by broadcast, their label; and those that release and resume their memory."""

from __future__ import annotations

import asyncio

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from sampler.engine.local.distributed import announced
from sampler.engine.local.engine import Engine
from sampler.engine.local.errors import bad_weights, field
from sampler.engine.local.routed import CONTROL_S, Routed, json_body
from shared.errors import DataError


async def update_weights_from_disk(engine: Engine, request: Request) -> Response:
    body = await json_body(request)
    message = await engine.update_weights(
        field(body, "model_path", str),
        field(body, "weight_version", str, None),
        flush_cache=field(body, "flush_cache", bool, True),
        abort_all=field(body, "abort_all_requests", bool, False),
    )
    return JSONResponse({"success": True, "message": message, "num_paused_requests": 0})


async def init_weights_update_group(engine: Engine, request: Request) -> Response:
    body = await json_body(request)
    return _changed(
        await engine.join_group(
            field(body, "master_address", str),
            field(body, "master_port", int),
            field(body, "rank_offset", int),
            field(body, "world_size", int),
            field(body, "group_name", str, "weight_update_group"),
            field(body, "backend", str, "nccl"),
        )
    )


async def destroy_weights_update_group(engine: Engine, request: Request) -> Response:
    return _changed(await engine.leave_group(field(await json_body(request), "group_name", str, "weight_update_group")))


async def begin_weight_update(engine: Engine, request: Request) -> Response:
    await json_body(request)
    return _changed(engine.begin_update())


async def end_weight_update(engine: Engine, request: Request) -> Response:
    await json_body(request)
    return _changed(engine.end_update())


async def update_weights_from_distributed(engine: Engine, request: Request) -> Response:
    body = await json_body(request)
    names, dtypes, shapes = (field(body, key, list) for key in ("names", "dtypes", "shapes"))
    try:
        what = announced(names, dtypes, shapes, field(body, "load_format", str, None))
    except DataError as error:
        raise bad_weights(f"Failed to receive weights: {error}") from error
    message = await engine.update_from_group(
        field(body, "group_name", str, "weight_update_group"),
        what,
        field(body, "weight_version", str, None),
        flush_cache=field(body, "flush_cache", bool, True),
    )
    return _changed(message)


def _changed(message: str) -> Response:
    return JSONResponse({"success": True, "message": message})


async def update_weight_version(engine: Engine, request: Request) -> Response:
    body = await json_body(request)
    version = field(body, "new_version", str)
    if field(body, "abort_all_requests", bool, True):
        await asyncio.wait_for(asyncio.wrap_future(engine.scheduler.abort(abort_all=True)), CONTROL_S)
    await asyncio.wait_for(asyncio.wrap_future(engine.scheduler.set_version(version)), CONTROL_S)
    answer = {"success": True, "message": f"Weight version updated to {version}", "new_version": version}
    return JSONResponse(answer)


async def get_weights_by_name(engine: Engine, request: Request) -> Response:
    """The first rows of one parameter, as float32. (SGLang 0.5.23 supports it only for Llama-like classes.)"""
    body = await json_body(request)
    rows = engine.weights_by_name(field(body, "name", str), field(body, "truncate_size", int, 100))
    if rows is None:
        return JSONResponse({"error": {"message": "Get parameter by name failed"}}, 400)
    return JSONResponse(rows)


async def release_memory_occupation(engine: Engine, request: Request) -> Response:
    """Free the KV cache and the weights' memory. Unlike SGLang, which crashes, it refuses while requests hold the cache."""
    tags = field(await json_body(request), "tags", list, None)
    await asyncio.wait_for(engine.release_memory(tags), CONTROL_S)
    return JSONResponse(None)


async def resume_memory_occupation(engine: Engine, request: Request) -> Response:
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
    ("/release_memory_occupation", release_memory_occupation, ["GET", "POST"]),
    ("/resume_memory_occupation", resume_memory_occupation, ["GET", "POST"]),
]
