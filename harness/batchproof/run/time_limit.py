"""Surrounds engine code, which may never return, or end the process, or raise what ends a session."""

import faulthandler
import math
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

from batchproof.errors import EngineHang, Interrupt
from batchproof.run.call_notes import notes

GRACE_S = 5.0  # from the time limit until an expendable process is ended, and between two tries
MOST_TRIES = 3  # to end a call by an exception
SWALLOWED_STATUS = 124  # of a process that an engine does not let go of, as of `timeout`
SOON_S = 1e-6  # a timer of 0 s never goes off


@contextmanager
def time_limit(seconds: float, what: str) -> Iterator[None]:
    """Raises `EngineHang` inside the block once it has run for `seconds`; `what` names the call.

    Warnings of the engine stay warnings; only those of the harness are errors. What no `except
    Exception` catches is raised as an `Exception` of that name.

    It uses the interval timer of the process, which exists on POSIX and reaches the main thread
    only; elsewhere there is no limit. An exception that leaves the block after it is the alarm's, of
    which TorchScript makes a `RuntimeError`. An engine that swallows the exception gets it again; after
    `MOST_TRIES` the process ends with `SWALLOWED_STATUS`. Native code that never returns to the
    interpreter is out of reach: only an expendable process (`--isolate`) is ended.
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
    alarm = _Alarm(seconds, what)
    try:
        yield
    except Exception as error:
        if alarm.left_s < 0:
            raise alarm.hang() from error
        raise
    finally:
        alarm.restore()
    if alarm.left_s < 0:
        raise EngineHang(
            f"{what} returned after {seconds - alarm.left_s:.1f} s, but should within {seconds:g} s: "
            f"it swallowed the exception that ends it, or took the alarm away"
        )


class _Alarm:
    """The alarm of one call, and the one that the process had before, such as that of pytest-timeout or
    of an outer time limit: that goes off when it is due, within our block or after it."""

    def __init__(self, seconds: float, what: str) -> None:
        now = time.monotonic()
        outer_s, _ = signal.getitimer(signal.ITIMER_REAL)
        self._what, self.words = what, f"{what} did not return within {seconds:g} s"
        self._end, self._cpu_s = now + seconds, time.process_time()
        self._num_tries = 0
        self._outer = signal.getsignal(signal.SIGALRM)
        self._outer_due = now + outer_s if outer_s else math.inf
        signal.signal(signal.SIGALRM, self)
        first_s = min(seconds, outer_s or seconds) if callable(self._outer) else seconds
        signal.setitimer(signal.ITIMER_REAL, max(first_s, SOON_S))

    @property
    def left_s(self) -> float:
        return self._end - time.monotonic()

    def hang(self) -> EngineHang:
        """Returns the error, with what tells an endless loop, a wait and a busy machine apart."""
        computed_s = time.process_time() - self._cpu_s
        fact = f"the process of the tests computed for {computed_s:.1f} s of that"
        return EngineHang(self.words, (fact,))

    def __call__(self, signum: int, frame: FrameType | None) -> None:
        if callable(self._outer) and self._outer_due <= time.monotonic() < self._end:
            is_ours = isinstance(self._outer, _Alarm)  # then it goes off again
            self._outer_due = time.monotonic() + GRACE_S if is_ours else math.inf
            signal.setitimer(signal.ITIMER_REAL, max(self.left_s, SOON_S))
            self._outer(signum, frame)  # which may raise
            return
        if self._num_tries == MOST_TRIES:
            _end_process(self._what, self.words)
        self._num_tries += 1
        signal.setitimer(signal.ITIMER_REAL, GRACE_S)
        raise Interrupt.sent or self.hang()

    def restore(self) -> None:
        """Gives the timer back; an alarm that is overdue goes off at once."""
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, self._outer)
        if self._outer_due < math.inf:
            left_s = max(self._outer_due - time.monotonic(), SOON_S)
            signal.setitimer(signal.ITIMER_REAL, left_s)


def repeat_interrupt() -> None:
    """Lets the alarm of a call raise the `Interrupt` again, which the engine may swallow."""
    if isinstance(signal.getsignal(signal.SIGALRM), _Alarm):
        left_s, _ = signal.getitimer(signal.ITIMER_REAL)
        signal.setitimer(signal.ITIMER_REAL, min(left_s, GRACE_S))


def _end_process(what: str, words: str) -> NoReturn:
    """Ends the process, and says why."""
    sent, note = Interrupt.sent, notes().note
    status = SWALLOWED_STATUS if sent is None else sent.exit_code
    words = words if sent is None else f"{what} did not return after {sent}"
    words = f"{words}, and swallowed {MOST_TRIES} exceptions that end it: the process ended itself"
    on = f"engine {note.engine} on {note.model}"
    notes().uncapture()
    print(f"batchproof: {on}: {words} with status {status}", file=sys.__stderr__, flush=True)
    os._exit(status)
