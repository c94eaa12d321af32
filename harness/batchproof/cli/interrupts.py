"""Ctrl-C and SIGTERM, which CI and schedulers send: both raise, so that what was found is kept."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from batchproof.errors import Interrupt
from batchproof.run.time_limit import repeat_interrupt

USUAL: dict[int, Any] = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}


@contextmanager
def interruptible() -> Iterator[None]:
    """Raises `Interrupt` in the block on Ctrl-C and SIGTERM, unless someone else handles the signal.
    Handlers belong to the main thread; in another one nothing changes."""
    is_main = threading.current_thread() is threading.main_thread()
    ours = [each for each in USUAL if is_main and signal.getsignal(each) is USUAL[each]]
    for each in ours:
        signal.signal(each, _interrupt)
    try:
        yield
    finally:
        for each in ours:
            signal.signal(each, USUAL[each])
        Interrupt.sent = None


def _interrupt(signum: int, _frame: FrameType | None) -> None:
    if signum == signal.SIGTERM:
        signal.signal(signum, signal.SIG_IGN)  # a second one must not cut short what is being kept
    Interrupt.sent = Interrupt(signum)
    repeat_interrupt()
    raise Interrupt.sent
