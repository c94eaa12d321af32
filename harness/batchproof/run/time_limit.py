"""A time limit around engine code that may never return."""

from __future__ import annotations

import signal
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from batchproof.errors import EngineHang


@contextmanager
def time_limit(seconds: float, what: str) -> Iterator[None]:
    """Raises `EngineHang` inside the block once it has run for `seconds`; `what` names the call.

    Warnings of the engine stay warnings; only those of the harness are errors.

    It uses the interval timer of the process, which exists on POSIX and reaches the main thread
    only; elsewhere there is no limit. Native code that never returns to the interpreter is out of
    reach: pytest's `faulthandler_timeout` shows where it hangs.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        with _alarm(seconds, what):
            yield


@contextmanager
def _alarm(seconds: float, what: str) -> Iterator[None]:
    if not hasattr(signal, "setitimer") or threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(_signum: int, _frame: FrameType | None) -> None:
        raise EngineHang(f"{what} did not return within {seconds:g} s")

    previous = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, previous)
