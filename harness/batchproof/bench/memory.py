"""The most memory that an engine takes, measured in a fresh process: nothing counts that another engine
has left behind, nor what checks answers."""

import multiprocessing
import re
import signal
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection

import torch

from batchproof.api import EngineConfig, Request
from batchproof.bench.drive import serve
from batchproof.bench.hardware import PROC, CpuMeter, descendants
from batchproof.requirements.promises import Promise
from batchproof.run.laboratory import Laboratory
from batchproof.run.registry import engines_module, resolve_engine
from batchproof.run.trial import Trial

RESETS_PEAK = "5"  # written to clear_refs: proc_pid_clear_refs(5)
MOST_DISPENSABLE = "1000"  # proc_pid_oom_score_adj(5); what it starts inherits it
GRACE_S = 10.0  # for a process to end what it has started


def peak_memory(
    trial: Trial, config: EngineConfig, requests: Sequence[Request], time_limit_s: float
) -> int | str:
    """Returns the most bytes that an engine holds while it is built and serves the requests, its model
    and libraries included: on a CPU the resident memory of the process that computes, and of those it
    has started; on a GPU what torch has allocated there. Returns why, in words, if that is unknown."""
    lab = trial.lab
    if not PROC.exists() or lab.device.type not in ("cpu", "cuda"):
        return "this system does not show it"
    facts = lab.device, lab.dtype, time_limit_s, torch.get_num_threads()
    asked = trial.spec.name, trial.subject.name, config, tuple(requests)
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe(duplex=False)
    fresh = context.Process(target=_report, args=(there, *facts, *asked))
    heard = signal.signal(signal.SIGINT, signal.SIG_IGN)  # inherited: Ctrl-C is for this process
    fresh.start()
    signal.signal(signal.SIGINT, heard)
    there.close()
    try:
        found: int | str = here.recv()
    except EOFError:
        found = "the process that measures it was ended"
    finally:  # also after Ctrl-C
        fresh.terminate()
        fresh.join(GRACE_S)
        fresh.kill()
    return found


def _report(connection: Connection, *asked: object) -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())  # which also ends a server, at exit
    with suppress(OSError):  # where memory runs out, this process is ended, and not who has the figures
        (PROC / "self" / "oom_score_adj").write_text(MOST_DISPENSABLE)
    try:
        found: int | str = _peak(*asked)  # type: ignore[arg-type]
    except BaseException as error:
        found = f"the engine raised {type(error).__name__}: {error}"
    connection.send(found)


def _peak(
    device: torch.device,
    dtype: torch.dtype,
    time_limit_s: float,
    num_threads: int,
    engine_name: str,
    model_name: str,
    config: EngineConfig,
    requests: Sequence[Request],
) -> int | str:
    torch.set_num_threads(num_threads)
    lab = Laboratory(device, dtype, time_limit_s)
    trial = Trial(lab, resolve_engine(engine_name), lab.oracle(model_name), Promise.P1)
    engines_module("adapters.child").kill_all()  # a program has converted the model, and tried it out
    _forget_peaks()
    engine = trial.build(config)
    cpu = CpuMeter()
    serve(engine, requests, device, time_limit_s, trial.capabilities)
    cpu.stop()
    started = descendants()
    is_here = cpu.own_s > cpu.seconds() / 2
    if device.type == "cpu":
        return _resident_peaks(("self", *started) if is_here else started)
    return torch.cuda.max_memory_allocated(device) if is_here else "it is another process's"


def _forget_peaks() -> None:
    """Models are made, converted and tried out before, which may take more memory than serving."""
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    for each in ("self", *descendants()):
        with suppress(OSError):  # it has ended
            (PROC / str(each) / "clear_refs").write_text(RESETS_PEAK)


def _resident_peaks(processes: Iterable[int | str]) -> int:
    total = 0
    for each in processes:
        with suppress(OSError):
            status = (PROC / str(each) / "status").read_text()
            found = re.search(r"^VmHWM:\s*(\d+) kB$", status, re.MULTILINE)
            total += int(found[1]) * 1024 if found else 0
    return total
