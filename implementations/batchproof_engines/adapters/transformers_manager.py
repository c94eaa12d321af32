"""The manager of transformers' continuous batching, isolated from the rest of the process.

Creates it in versions 5.17 and 5.23, starts and stops it, and undoes what it alters besides its work.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, fields
from importlib.util import find_spec
from threading import Thread
from typing import Any, cast

import torch
import transformers
from transformers import (
    ContinuousBatchingConfig,
    ContinuousBatchingManager,
    ContinuousMixin,
    GenerationConfig,
    PreTrainedModel,
)
from transformers.generation.continuous_batching.requests import GenerationOutput
from transformers.generation.continuous_batching.utils import WorkloadHints

from batchproof.errors import UsageError
from batchproof_engines.model_support import unsupported

NAME = "transformers-cb"
STOP_S = 10.0
POLL_S = 0.5
_FIELDS = {field.name for field in fields(ContinuousBatchingConfig)}
_PAGE_FIELD = "page_size" if "page_size" in _FIELDS else "block_size"  # the latter in 5.17
_SWITCHES_TO_FLASH = "auto_switch_to_flash" in _FIELDS  # 5.17 always does


@dataclass(frozen=True, slots=True)
class Tuning:
    """What `EngineConfig` leaves open."""

    attention: str
    page_size: int  # tokens
    max_batch_tokens: int  # fed in one step
    shares_prefixes: bool
    can_step: bool
    is_guarded: bool  # bad requests are refused here, and torch's generators left as they were


def attention_of(model: PreTrainedModel, asked: str | None) -> str:
    """Returns the attention a manager would use: as asked, else flash attention if available, else the
    model's.

    Raises `UsageError` if the one asked for is not available, and `UnsupportedModelError` if the
    model's own is not supported.
    """
    with _unaltered(model):
        try:
            if asked is not None:
                is_ready = _SWITCHES_TO_FLASH or "flash" in asked or "|" in asked
                model.set_attn_implementation(asked if is_ready else f"paged|{asked}")
            _manager(model, _config(may_change=asked is None))
        except (AttributeError, ImportError, ValueError) as error:
            if asked is not None:
                raise UsageError(f"attention {asked!r} is not available here: {error}") from error
            raise unsupported(NAME, model, str(error)) from error
        return str(model.config._attn_implementation)


def manager_for(
    model: PreTrainedModel, tuning: Tuning, *, num_pages: int, max_num_seqs: int, longest: int
) -> ContinuousBatchingManager:
    """Returns a running manager whose pool is made and whose graphs are captured and compiled.

    The pool has `num_pages` per layer, and no sequence more than `longest` tokens. The library seeds
    torch's generators for that. Raises `MemoryError` if so many pages do not fit, and `UsageError` if
    it cannot see the memory.
    """
    values: dict[str, Any] = {
        _PAGE_FIELD: tuning.page_size,
        "num_blocks": num_pages,
        "max_batch_tokens": tuning.max_batch_tokens,
        "max_requests_per_batch": max_num_seqs,
        "allow_block_sharing": tuning.shares_prefixes,
        "default_compile_level": 0,
    }
    hints = WorkloadHints(longest, 0, max_num_seqs)
    with _unaltered(model, undoes_seeding=tuning.is_guarded), attending(model, tuning.attention):
        manager = _manager(model, _config(may_change=False, **values), hints)
        try:
            manager.warmup()
        except MemoryError as error:
            if find_spec("psutil") is None:
                needed = "transformers needs psutil to see how much memory there is"
                raise UsageError(f"{needed}: pip install psutil") from error
            raise
    _start(manager)
    return manager


def next_output(manager: ContinuousBatchingManager, *, waits: bool) -> GenerationOutput | None:
    """Returns the next output, or None if there is none yet and `waits` is false.

    Raises `RuntimeError` if a request has failed or the thread has ended: no output would ever come.
    """
    while True:
        is_running = manager.is_running()  # checked first, so that the last outputs are still read
        output = manager.get_result(timeout=POLL_S if waits else 0)
        if output is not None and output.error is not None:
            raise RuntimeError(f"transformers failed: {output.error}")
        if output is not None:
            return output
        if not is_running:
            raise RuntimeError("transformers' thread ended without an answer")
        if not waits:
            return None


def is_idle(manager: ContinuousBatchingManager) -> bool:
    """Returns whether it has no work left, including aborted requests to remove from the model."""
    is_asked = not (manager.input_queue.empty() and manager.cancel_queue.empty())
    processor = manager.batch_processor
    return not (is_asked or (processor is not None and processor.has_pending_requests()))


def stop(manager: ContinuousBatchingManager) -> None:
    """Stops the manager, whatever it is doing, after the current step."""
    manager.stop(block=True, timeout=STOP_S, hard_stop=True)
    manager.destroy()


def paused(manager: ContinuousBatchingManager) -> AbstractContextManager[None]:
    """A context in which added requests become visible together, if the library supports that
    (5.23)."""
    return manager.pause() if hasattr(manager, "pause") else nullcontext()


@contextmanager
def attending(model: PreTrainedModel, attention: str) -> Iterator[None]:
    before = model.config._attn_implementation
    try:
        _attend(model, attention)
        yield
    finally:
        _attend(model, before)


@contextmanager
def _unaltered(model: PreTrainedModel, *, undoes_seeding: bool = True) -> Iterator[None]:
    """Undoes what making a manager does: it seeds the generators and switches the model to
    evaluation."""
    before, was_training = model.config._attn_implementation, model.training
    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
    with torch.random.fork_rng(devices, enabled=undoes_seeding):
        try:
            yield
        finally:
            _attend(model, before)
            if model.training != was_training:
                model.train(was_training)


def _attend(model: PreTrainedModel, attention: str) -> None:
    if model.config._attn_implementation != attention:
        model.set_attn_implementation(attention)


def in_words(manager: ContinuousBatchingManager | None, attention: str) -> str:
    """Returns a description of the manager's mode of operation; modes differ in speed severalfold."""
    version = f"transformers {transformers.__version__}, attention {attention}"
    if manager is None:
        return f"{version}, no pool yet"
    config = manager.continuous_batching_config
    return (
        f"{version}, {config.num_blocks} pages of {getattr(config, _PAGE_FIELD)}, "
        f"{config.max_batch_tokens} tokens a step, prefix sharing {config.allow_block_sharing}, "
        f"graphs {config.use_cuda_graph}, compile level {config.default_compile_level}, "
        f"overlap {config.use_async_batching}, blocks in decode kernel {config.max_blocks_per_request}"
    )


def _manager(
    model: PreTrainedModel, config: ContinuousBatchingConfig, hints: WorkloadHints | None = None
) -> ContinuousBatchingManager:
    """Makes a manager that decodes greedily and ignores the model's own generation settings."""
    greedy = GenerationConfig(do_sample=False, eos_token_id=-1)
    return cast(ContinuousMixin, model).init_continuous_batching(greedy, config, hints)


def _config(*, may_change: bool, **values: Any) -> ContinuousBatchingConfig:
    """Returns a configuration; with `may_change`, the attention may change to flash attention."""
    if _SWITCHES_TO_FLASH:
        values["auto_switch_to_flash"] = may_change
    return ContinuousBatchingConfig(**values)


def _start(manager: ContinuousBatchingManager) -> None:
    """Starts the manager's thread as a child of a daemon.

    Otherwise an engine that is never closed would keep the process from ending.
    """
    starter = Thread(target=manager.start, daemon=True)
    starter.start()
    starter.join()
