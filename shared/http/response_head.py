"""The head of an HTTP/1.1 response, and how its body ends, for the transports of our own."""

MAX_HEAD_BYTES = 1 << 16


class ResponseHead:
    """Status line and fields. `start`: where the body begins. `length=None`: the body ends otherwise. Raises ValueError."""

    def __init__(self, text: str, start: int) -> None:
        status_line, *lines = text.split("\r\n")
        protocol, status, *_ = status_line.split(" ", 2)
        if not protocol.startswith("HTTP/1."):
            raise ValueError(f"it begins with {status_line[:40]!r}")
        self.status = int(status)
        self.fields = [(name.strip(), value.strip()) for name, _, value in (line.partition(":") for line in lines)]
        self.known = {name.lower(): value.lower() for name, value in self.fields}
        self.start = start
        self.chunked = "chunked" in self.known.get("transfer-encoding", "")
        bodiless = self.status in (204, 304)
        length = self.known.get("content-length")
        self.length = 0 if bodiless else None if length is None else body_size(length, 10)
        bounded = self.chunked or self.length is not None
        self.keeps_alive = bounded and protocol == "HTTP/1.1" and self.known.get("connection") != "close"


def body_size(digits: str, base: int, most: int | None = None) -> int:
    """Raises ValueError: a negative size would be read without end, and one above `most` would fill the memory."""
    size = int(digits, base)
    if size < 0 or (most is not None and size > most):
        expected = "no negative number" if most is None else f"at most {most}"
        raise ValueError(f"a body, or a part of one, of {digits[:40]} bytes; expected {expected}")
    return size
