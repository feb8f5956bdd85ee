"""Ctrl-C and its relatives: an exception that unwinds, so that contests kill what they started."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Never

_NAMES = ("SIGINT", "SIGTERM", "SIGHUP")


class Stopped(KeyboardInterrupt):
    """A signal asked for the end."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number

    @property
    def exit_code(self) -> int:
        """What shells give: 128 and the signal's number; 130 for Ctrl-C."""
        return 128 + self.number


@contextlib.contextmanager
def stopping_cleanly() -> Iterator[None]:
    """Within the block the signals raise ``Stopped``, once: a second one must not end the cleaning up halfway.

    Signals that were ignored stay ignored (``nohup``). Handlers are put back afterwards.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = [getattr(signal, name) for name in _NAMES if hasattr(signal, name)]
    before = {number: signal.getsignal(number) for number in numbers}
    caught = [number for number, handler in before.items() if handler not in {signal.SIG_IGN, None}]

    def stop(number: int, frame: FrameType | None) -> Never:
        del frame
        for other in caught:
            signal.signal(other, signal.SIG_IGN)
        raise Stopped(number)

    for number in caught:
        signal.signal(number, stop)
    try:
        yield
    finally:
        for number in caught:
            signal.signal(number, before[number])
