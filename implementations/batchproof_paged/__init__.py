"""Continuous batching for causal LMs of transformers, fast where their attention can be replaced.

The life of a request in a model whose layers only attend (others: see `feeding`):

1. `engine.add` checks it (`batchproof.api.Limits`, and the size of the pool) and queues it.
2. `scheduler.schedule` plans a step: every running sequence gets its next token, the oldest first, and
   the rest of the token budget goes to prompts. A newcomer gets a *lane*, the row of the tables that
   it owns while it runs, and *blocks* of the KV cache from the `block_manager`, which reuses those of
   an equal prefix. If blocks run out, the youngest sequence gives its own back and waits again.
3. `batch.RaggedBatch` turns the plan into arrays: all fed tokens in one row (1, T), their positions,
   and the slot of the cache each key goes to. There is no padding and no mask.
4. `runner.launch` runs the model once over that row. In place of its own attention the model calls
   `attention`, and the *backend* stores the new keys and values and attends: `lanes` on a CPU, where
   each sequence's cache is a slice; elsewhere `blocks`, through block tables, with kernels in Triton
   or, without it, in torch. The head computes the sampled rows only.
5. `scheduler.update` records the outcome: full blocks are published to the prefix cache, and finished
   sequences give back lane and blocks at once, so that the next step can use them.
6. `engine.step` returns the events.

    sequence, block_manager, scheduler            policy: imports no torch
    rows, batch                                   policy -> arrays
    lanes | blocks                                tensors: storage of keys and values
    moving                                        blocks to the host's memory, to another engine, back
    native | kernels: torch_kernels, triton_*     their readers; masking reads a mask off them
    decoder, decoder_ops                          common decoders as one native call
    attention, runner, staging                    the model, and transfers to and from the device
    speculation                                   who drafts, and which drafts are accepted
    feeding, declared                             which models are fed as a packed row, and how others
    cached_runner, row_caches                     models with states, or with an attention of their own
    compiled                                      fewer kernels
    graphs                                        steps without the host's work
    packing, native_build                         weights in a faster layout; kernels for this CPU
    invariant                                     the same bits in every batch, where no kernel has them
    engine                                        a step, and what a client calls
    transfer                                      one engine for prompts, and one that goes on
    options                                       what can be switched, and what an engine can do then

What makes it fast: nothing is gathered and no mask is built; a mixed step serves decodes and prompts by
separate kernels. On a CPU a common decoder is one call of native code between tokens and logits
(`decoder`), whose results for a row depend on no other row; other models multiply (`packing`) and
attend by the same kernels (`native`). On CUDA one compiled layer serves as all of them (`compiled`);
steps are recorded as graphs (`graphs`); the pool is sized and all of this is made when the engine is
built; and tokens are read one step late, while the device works on the next step. An EOS is read late
as well: its sequence is fed once more, the surplus token is dropped, and the slot is filled a step
later; the engine declares a `scheduling_delay` of 1.
"""

from dataclasses import replace

import torch
from transformers import PreTrainedModel

from batchproof.api import Capability, Engine, EngineConfig, Limits
from batchproof.errors import ConfigError
from batchproof_paged.attention import Backend
from batchproof_paged.block_manager import RESTORED, TRANSFERRED
from batchproof_paged.blocks import BlockPool
from batchproof_paged.engine import PagedEngine
from batchproof_paged.feeding import options_for
from batchproof_paged.graphs import REPLAYED
from batchproof_paged.lanes import LanePool
from batchproof_paged.options import NO_AUTOCAST, PACKED, SEPARATE, STACKED, PagedOptions
from batchproof_paged.transfer import TransferEngine

FEED_NOTES = {
    STACKED: "it carries states: decodes are one batch, prompts are fed by themselves",
    SEPARATE: "the slow way: each sequence is fed by itself, with the model's own attention",
}
LONGEST_TABLE = 8192  # the most blocks that tables have room for at first


def paged(
    model: PreTrainedModel,
    config: EngineConfig,
    *,
    num_speculative_tokens: int | None = None,
    draft_agreement: float | None = None,
    **given: object,
) -> Engine:
    """Builds a paged engine; `given` are fields of `PagedOptions`. `num_speculative_tokens` and
    `draft_agreement` count where `EngineConfig` asks for no drafts.

    Raises `UnsupportedModelError` for a model that it would serve wrongly, and `ConfigError` for
    options that contradict each other or the device, and inside `torch.autocast`.
    """
    if torch.is_autocast_enabled(model.device.type):
        raise ConfigError(NO_AUTOCAST)
    if config.num_speculative_tokens is None:
        drafts = {"num_speculative_tokens": num_speculative_tokens, "draft_agreement": draft_agreement}
        config = replace(config, **drafts)  # type: ignore[arg-type]
    options, notes = options_for(model, PagedOptions.of(given), build_unprobed)
    if options.feed != PACKED:
        notes = (FEED_NOTES[options.feed],)
    if config.prefix_caching and not options.keeps_prefixes:
        notes += ("prefix caching has no effect: what precedes a request is fed as one chunk",)
    engine = build_unprobed(model, config, options)
    if num_speculative_tokens and Capability.SPECULATION not in engine.capabilities:
        raise ConfigError(
            f"engine 'paged': num_speculative_tokens is {num_speculative_tokens}, but needs "
            f"overlap=false (it is {str(bool(options.overlap)).lower()}), feed=packed (it is "
            f"{options.feed}) and transfer=false (it is {str(options.transfer).lower()})"
        )
    engine.notes = notes
    return engine


# Of a matrix (`batchproof.judgement.axes`): what is set, what must have happened, and beside what.
paged.axes = {  # type: ignore[attr-defined]
    "overlap": {"false": {"overlap": "false"}, "true": {"overlap": "true"}},
    "graphs": {
        "off": {"graphs": "false"},
        "on": {"graphs": "true", "--device": "cuda", "met": REPLAYED},
    },
    "offload": {"0": {}, "8": {"offload": "8", "met": RESTORED}},
    "transfer": {
        "false": {},
        "true": {"transfer": "true", "met": TRANSFERRED, "beside": {"overlap": "false"}},
    },
    "draft": {
        "none": {},
        "ngram": {
            "num_speculative_tokens": "3",
            "met": "drafts accepted",
            "beside": {"overlap": "false", "transfer": "false"},
        },
    },
}


def built_as(engine_class: type[PagedEngine], model: PreTrainedModel, config: EngineConfig) -> Engine:
    """Builds an engine of a class that names its options as `asked`, packed and without a trial batch:
    it may be a planted fault."""
    asked = {"feed": PACKED, **engine_class.asked}
    options = PagedOptions.of(asked).resolved(model.device, model.dtype)
    return build_unprobed(model, config, options, engine_class)


def build_unprobed(
    model: PreTrainedModel,
    config: EngineConfig,
    options: PagedOptions,
    engine_class: type[PagedEngine] | None = None,
) -> PagedEngine:
    """Assembles the engine without a trial batch; `options` are resolved."""
    longest = Limits.of(model, config).max_model_len
    # No block needs to be larger than the longest sequence.
    config = replace(config, block_size=min(config.block_size, longest))
    if not options.keeps_prefixes:
        config = replace(config, prefix_caching=False)

    def make_backend(num_lanes: int, num_blocks: int | None) -> Backend:
        if options.backend == "lanes":
            return LanePool(num_lanes, config.block_size, num_blocks)
        num_columns = min(-(-longest // config.block_size), LONGEST_TABLE)
        kernels = "triton" if options.backend == "triton" else "torch"
        return BlockPool(
            num_lanes,
            config.block_size,
            num_blocks,
            device=model.device,
            kernels="invariant" if options.batch_invariant else kernels,
            num_columns=num_columns,
        )

    engine_class = engine_class or (TransferEngine if options.transfer else PagedEngine)
    return engine_class(model, config, make_backend, options)
