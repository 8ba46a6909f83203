"""A calculator as a task of AgentRL's real worker, and a controller before it. Runs in a Python that has `agentrl-worker`.

The worker is the package's own; its controller is a Go program that no package index has, so this forwards what that would.
Prints its port. Usage: python agentrl_controller.py
"""

import socket
import sys
import threading

import httpx
import uvicorn
from agentrl.worker.task import Session, Task
from agentrl.worker.task_worker import TaskWorker
from agentrl.worker.typings import RewardHistoryItem, SampleStatus, TaskSampleExecutionResult
from fastapi import FastAPI, Request, Response

ADD = {
    "type": "function",
    "function": {
        "name": "add",
        "parameters": {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}},
    },
}


class Calculator(Task):
    """Index k asks for k + 1; index 13 crashes. The tool `add`, or the sum as the answer."""

    def __init__(self) -> None:
        super().__init__(name="calculator", concurrency=2, tools=[ADD], full_async=True)

    def get_indices(self) -> list[int]:
        return list(range(20))

    async def start_sample(self, index: int, session: Session) -> TaskSampleExecutionResult:
        session.inject(
            [{"role": "system", "content": "Answer with a number."}, {"role": "user", "content": f"{index}+1?"}]
        )
        for _ in range(4):
            said = (await session.action()).messages[-1]
            if index == 13:
                raise RuntimeError("the calculator fell down")
            if not said.get("tool_calls"):
                right = str(said.get("content")).strip() == str(index + 1)
                session.inject(RewardHistoryItem(reward=float(right), score=float(right), metrics={"tries": 1}))
                return TaskSampleExecutionResult(status=SampleStatus.COMPLETED)
            (call,) = said["tool_calls"]
            session.inject({"role": "tool", "tool_call_id": call["id"], "content": str(index + 1)})
        return TaskSampleExecutionResult(status=SampleStatus.TASK_LIMIT_REACHED)


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
    async def indices(name: str) -> list[int]:
        found: list[int] = (await http.get("/api/get_indices")).json()
        return found

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


def main() -> None:
    at, worker_at = free_port(), free_port()
    worker = TaskWorker(Calculator(), f"http://127.0.0.1:{at}/api", f"http://127.0.0.1:{worker_at}/api")
    threading.Thread(target=worker.run, args=("127.0.0.1", worker_at), daemon=True).start()
    threading.Thread(target=tell, args=(at, worker_at), daemon=True).start()
    uvicorn.run(controller(f"http://127.0.0.1:{worker_at}"), host="127.0.0.1", port=at, log_level="warning")


def tell(*ports: int) -> None:
    """The port, once both listen."""
    for port in ports:
        while True:
            with socket.socket() as one:
                if one.connect_ex(("127.0.0.1", port)) == 0:
                    break
    sys.stdout.write(f"{ports[0]}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
