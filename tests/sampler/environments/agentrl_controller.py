"""A calculator as a task of AgentRL's real worker, and a controller before it. Runs in a Python that has `agentrl-worker`.

Prints its port. Usage: python -m tests.sampler.environments.agentrl_controller
"""

from agentrl.worker.task import Session, Task
from agentrl.worker.typings import RewardHistoryItem, SampleStatus, TaskSampleExecutionResult

from assets.calculator.controller import serve

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


if __name__ == "__main__":
    serve(Calculator())
