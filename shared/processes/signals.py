"""The signals that end a program. One that its parent ignores (`nohup`, a shell's job in the background) stays ignored."""

import signal


def not_ignored(*numbers: signal.Signals) -> list[signal.Signals]:
    """Those of `numbers` that a handler may be set for."""
    return [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]


def ending_signals() -> list[signal.Signals]:
    """SIGINT and SIGTERM, for a program that ends in order."""
    return not_ignored(signal.SIGINT, signal.SIGTERM)
