"""The most memory that an engine takes, measured in a fresh process: nothing counts that another engine
has left behind, nor what checks answers."""

import multiprocessing
import re
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress

import torch

from batchproof.api import EngineConfig, Request
from batchproof.bench.drive import serve
from batchproof.bench.hardware import PROC, CpuMeter, descendants
from batchproof.requirements.promises import Promise
from batchproof.run.laboratory import Laboratory
from batchproof.run.registry import resolve_engine
from batchproof.run.trial import Trial

RESETS_PEAK = "5"  # written to clear_refs: proc_pid_clear_refs(5)


def peak_memory(
    trial: Trial, config: EngineConfig, requests: Sequence[Request], time_limit_s: float
) -> int | None:
    """Returns the most bytes that an engine holds while it is built and serves the requests, its model
    and libraries included: on a CPU the resident memory of the process that computes, and of those it
    has started; on a GPU what torch has allocated there. None where that cannot be seen: on a system
    other than Linux, and on a GPU in another process."""
    lab = trial.lab
    if not PROC.exists() or lab.device.type not in ("cpu", "cuda"):
        return None
    facts = lab.device, lab.dtype, time_limit_s, torch.get_num_threads()
    asked = trial.spec.name, trial.subject.name, config, tuple(requests)
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as fresh:
        return fresh.submit(_peak, *facts, *asked).result()


def _peak(
    device: torch.device,
    dtype: torch.dtype,
    time_limit_s: float,
    num_threads: int,
    engine_name: str,
    model_name: str,
    config: EngineConfig,
    requests: Sequence[Request],
) -> int | None:
    torch.set_num_threads(num_threads)
    lab = Laboratory(device, dtype, time_limit_s)
    trial = Trial(lab, resolve_engine(engine_name), lab.oracle(model_name), Promise.P1)
    _forget_peaks()
    engine = trial.build(config)
    cpu = CpuMeter()
    serve(engine, requests, device, time_limit_s, trial.capabilities)
    cpu.stop()
    started = descendants()
    is_here = cpu.own_s > cpu.seconds() / 2
    if device.type == "cuda":
        peak = torch.cuda.max_memory_allocated(device) if is_here else None
    else:
        peak = _resident_peaks(("self", *started) if is_here else started)
    trial.close(engine)
    return peak


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
