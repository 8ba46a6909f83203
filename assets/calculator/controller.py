"""A controller of AgentRL's protocol before one real worker (`agentrl-worker`), for tries on one machine.

AgentRL's own controller is a Go program that no package index has; this one passes requests on as that would:

    sampler ──/api/start_sample, interact, cancel──▶ here ──▶ TaskWorker(task)
"""

import socket
import sys
import threading
from typing import Any

import httpx
import uvicorn
from agentrl.worker.task import Task
from agentrl.worker.task_worker import TaskWorker
from fastapi import FastAPI, Request, Response


def serve(task: Task, port: int = 0) -> None:
    """Print the port, once controller and worker listen, and serve until the process ends."""
    at, worker_at = port or free_port(), free_port()
    worker = TaskWorker(task, f"http://127.0.0.1:{at}/api", f"http://127.0.0.1:{worker_at}/api")
    threading.Thread(target=worker.run, args=("127.0.0.1", worker_at), daemon=True).start()
    threading.Thread(target=tell, args=(at, worker_at), daemon=True).start()
    uvicorn.run(controller(f"http://127.0.0.1:{worker_at}"), host="127.0.0.1", port=at, log_level="warning")


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def controller(worker: str) -> FastAPI:
    app, sessions = FastAPI(), iter(range(1, 1 << 30))
    http = httpx.AsyncClient(base_url=worker, timeout=60)

    @app.post("/api/receive_heartbeat")
    async def heartbeat() -> dict[str, str]:
        return {}

    @app.get("/api/get_indices")
    async def indices(name: str) -> Any:
        return (await http.get("/api/get_indices")).json()

    @app.post("/api/start_sample")
    async def start(request: Request) -> Response:
        given, session = await request.json(), next(sessions)
        sent = {"index": given["index"], "custom_task": given["custom_task"], "session_id": session}
        return passed(await http.post("/api/start_sample", json=sent), session)

    @app.post("/api/{verb}")
    async def ask(verb: str, request: Request) -> Response:
        session = int(request.headers["session_id"])
        given = await request.json() if await request.body() not in (b"", b"null") else {}
        return passed(await http.post(f"/api/{verb}", json={**given, "session_id": session}), session)

    return app


def passed(answer: httpx.Response, session: int) -> Response:
    headers = {"session_id": str(session), "content-type": "application/json"}
    return Response(answer.content, answer.status_code, headers)


def tell(*ports: int) -> None:
    for port in ports:
        while True:
            with socket.socket() as one:
                if one.connect_ex(("127.0.0.1", port)) == 0:
                    break
    sys.stdout.write(f"{ports[0]}\n")
    sys.stdout.flush()
