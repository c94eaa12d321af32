"""transformers' own continuous batching: the peer with which ours is compared.

    generate -> add_request ... -> its thread: schedule, forward, update -> get_result -> completions

A manager of transformers owns a pool of pages and a thread that runs the model. Both outlive a call, as
in a server: a call pays for its requests and not for any setup. The pool is made when the engine is
built, if the configuration says how long a sequence or how large the pool may be; otherwise by the
first call, for what that needs, and again by a call that needs a larger one. By default the library
would take more than half of the free memory. Between calls its thread wakes ten times a second, which
takes less than 2 ms of CPU time.

There are no logits and no trace: the library exposes neither. The engine's notes are its conventions.
"""

from transformers import PreTrainedModel

from batchproof.api import Engine, EngineConfig
from batchproof_engines.adapters.transformers_engine import TransformersEngine
from batchproof_engines.adapters.transformers_manager import NAME, Tuning, attention_of
from batchproof_engines.model_support import refuse_unbatchable
from batchproof_engines.trial_batch import probe_tokens

LEAST_PAGE = 4  # tokens; the library accepts no smaller one
FLASH_PAGE = 256  # tokens; pages for flash attention are a multiple of this
DENSE_CPU_BUDGET = 128


def transformers_cb(
    model: PreTrainedModel,
    config: EngineConfig,
    *,
    attention: str | None = None,
    stepping: bool = False,
    guarded: bool = True,
) -> Engine:
    """Builds an engine around a manager of transformers.

    * `attention`: sdpa, eager, flash_attention_2 ...; by default flash attention if the library finds
      it, otherwise the model's own.
    * `stepping`: the engine can be stepped, see `TransformersEngine`.
    * `guarded`: bad requests are refused before the library sees them, and torch's generators are left
      as they were.

    Raises `UnsupportedModelError` for a model it would answer wrongly, and `UsageError` for an
    attention that is not available.
    """
    refuse_unbatchable(NAME, model)
    implementation = attention_of(model, attention)

    def built(config: EngineConfig, can_step: bool = False) -> TransformersEngine:
        page, budget = _fastest(model, config, implementation)
        tuning = Tuning(implementation, page, budget, config.prefix_caching, can_step, guarded)
        return TransformersEngine(model, config, tuning)

    probe_tokens(NAME, model, implementation, built)
    return built(config, stepping)


def _fastest(model: PreTrainedModel, config: EngineConfig, attention: str) -> tuple[int, int]:
    """Returns the tokens in a page and in a step that are fastest within what `config` allows.

    With a dense mask, the cost of each token of a step grows with the number of all others: on a CPU,
    16 prompts of 256-768 tokens take 1.4 times as long in steps of 2,048 as in steps of 128. Short
    prompts make no difference.
    """
    if "flash" in attention:
        return FLASH_PAGE, config.max_num_batched_tokens
    budget = config.max_num_batched_tokens
    if model.device.type == "cpu":
        budget = min(budget, max(DENSE_CPU_BUDGET, 2 * config.max_num_seqs))
    return max(LEAST_PAGE, config.block_size), budget
