"""What nobody foresaw, in the document of the task that met it."""

from pydantic import BaseModel, ConfigDict


class Unforeseen(BaseModel):
    """`error` is the last one's. `set_aside`: its episodes met so many that none is played any more, or its settlement did."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    episodes: int = 0
    settlements: int = 0
    error: str = ""
    set_aside: bool = False
