"""An environment of verifiers: sums, with a tool that adds two numbers. Needs nothing to be downloaded."""

import verifiers.v1 as vf


class SumsData(vf.TaskData):
    """`total`: the right answer."""

    total: int = 0


class Adder(vf.Toolset[vf.ToolsetConfig]):
    @vf.tool
    async def add(self, a: int, b: int) -> str:
        """Add two numbers."""
        return str(a + b)


class SumsTask(vf.Task[SumsData]):
    @classmethod
    def toolsets(cls, config: vf.TaskConfig) -> list[vf.Toolset]:
        return [Adder(vf.ToolsetConfig())]

    @vf.reward(weight=1.0)
    async def right(self, trace: vf.Trace) -> float:
        return float(str(self.data.total) in (trace.last_reply or "").split())

    @vf.reward(weight=0.5)
    async def used_the_tool(self, trace: vf.Trace) -> float:
        return float(any(message.role == "tool" for branch in trace.branches for message in branch.messages))


class SumsTaskset(vf.Taskset[SumsTask, vf.TasksetConfig]):
    def load(self) -> list[SumsTask]:
        rows = [SumsData(idx=k, prompt=f"What is {k} + {k + 1} + {k + 2}?", total=3 * k + 3) for k in range(100)]
        return [SumsTask(row, self.config.task) for row in rows]


__all__ = ["SumsTaskset"]

if __name__ == "__main__":
    Adder.run()
