"""Surrounds engine code, which may never return, or end the process, or raise what ends a session."""

from __future__ import annotations

import faulthandler
import math
import signal
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from batchproof.errors import EngineHang, Interrupt
from batchproof.run.call_notes import notes

GRACE_S = 5.0  # after the time limit, until an expendable process is ended
SOON_S = 1e-6  # a timer of 0 s never goes off


@contextmanager
def time_limit(seconds: float, what: str) -> Iterator[None]:
    """Raises `EngineHang` inside the block once it has run for `seconds`; `what` names the call.

    Warnings of the engine stay warnings; only those of the harness are errors. What no `except
    Exception` catches is raised as an `Exception` of that name.

    It uses the interval timer of the process, which exists on POSIX and reaches the main thread
    only; elsewhere there is no limit. An exception that leaves the block after it is the alarm's, of
    which TorchScript makes a `RuntimeError`. Native code that never returns to the interpreter, or an
    engine that swallows the exception, is out of reach: only an expendable process (`--isolate`) is
    ended.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        with notes().calling(what, seconds), _deadline(seconds), _alarm(seconds, what), contained():
            yield


@contextmanager
def contained() -> Iterator[None]:
    """Raises as an `Exception` what would end the run instead of the test: SystemExit, a
    KeyboardInterrupt that was not sent, an outcome of pytest, a panic of native code; and an
    `Interrupt` where native code, such as TorchScript, has made another error of one."""
    try:
        yield
    except (EngineHang, Interrupt, GeneratorExit):
        raise
    except Exception as error:
        if Interrupt.sent is not None:
            raise Interrupt.sent from error
        raise
    except BaseException as error:
        is_sent = isinstance(error, KeyboardInterrupt) and (
            signal.getsignal(signal.SIGINT) is signal.default_int_handler
        )
        if is_sent or type(error).__module__.startswith("hypothesis"):
            raise
        kind = type(type(error).__name__, (Exception,), {})
        raise kind(str(error)).with_traceback(error.__traceback__) from None


@contextmanager
def _deadline(seconds: float) -> Iterator[None]:
    """Ends an expendable process some seconds after the limit, and dumps its stacks, even if native
    code holds the interpreter."""
    dump = notes().dump
    if dump is None:
        yield
        return
    faulthandler.enable(dump)  # pytest has its own, whose output is lost with the process
    faulthandler.dump_traceback_later(seconds + GRACE_S, exit=True, file=dump)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()


@contextmanager
def _alarm(seconds: float, what: str) -> Iterator[None]:
    if not hasattr(signal, "setitimer") or threading.current_thread() is not threading.main_thread():
        yield
        return

    late = f"{what} did not return within {seconds:g} s"
    began = time.monotonic()
    outer = _OuterAlarm(began)

    def stop(signum: int, frame: FrameType | None) -> None:
        left_s = began + seconds - time.monotonic()
        if left_s <= 0 or not outer.is_due():
            raise EngineHang(late)
        outer.due = math.inf
        signal.setitimer(signal.ITIMER_REAL, left_s)
        if callable(outer.handler):
            outer.handler(signum, frame)  # which may raise

    signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, outer.earlier(seconds))
    try:
        yield
    except Exception as error:
        if time.monotonic() - began > seconds:
            raise EngineHang(late) from error
        raise
    finally:
        outer.restore()
    took = time.monotonic() - began
    if took > seconds:
        raise EngineHang(
            f"{what} returned after {took:.1f} s, but should within {seconds:g} s: it swallowed the "
            f"exception that ends it, or took the alarm away"
        )


class _OuterAlarm:
    """The alarm of the process before ours, such as that of pytest-timeout or of an outer time limit.

    It goes off once, when it is due, within our block or after it.
    """

    def __init__(self, now: float) -> None:
        left_s, _ = signal.getitimer(signal.ITIMER_REAL)
        self.handler = signal.getsignal(signal.SIGALRM)
        self.due = now + left_s if left_s else math.inf

    def is_due(self) -> bool:
        """Whether its time has come, and Python code waits for it."""
        return callable(self.handler) and self.due <= time.monotonic()

    def earlier(self, seconds: float) -> float:
        """The seconds until this alarm or until `seconds` are over, whichever is less."""
        left_s = self.due - time.monotonic() if callable(self.handler) else math.inf
        return min(seconds, max(left_s, SOON_S))

    def restore(self) -> None:
        """Gives the timer back; an alarm that is overdue goes off at once."""
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, self.handler)
        if self.due < math.inf:
            left_s = max(self.due - time.monotonic(), SOON_S)
            signal.setitimer(signal.ITIMER_REAL, left_s)
