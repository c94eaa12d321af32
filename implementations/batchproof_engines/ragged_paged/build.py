"""Which paged teaching engine serves a model."""

from __future__ import annotations

from transformers import DynamicCache, PreTrainedModel
from transformers.cache_utils import LinearAttentionCacheLayerMixin

from batchproof.api import Engine, EngineConfig
from batchproof_engines.model_support import refuse_batch_dependent, refuse_unbatchable, unsupported
from batchproof_engines.ragged_paged.engine import RaggedPagedEngine
from batchproof_engines.ragged_paged.states import StatefulEngine
from batchproof_engines.trial_batch import probe_logits

NAME = "ragged-paged"


def has_states(model: PreTrainedModel) -> bool:
    """Returns whether layers of the model carry a recurrent state."""
    layers = DynamicCache(config=model.config).layers
    return any(isinstance(layer, LinearAttentionCacheLayerMixin) for layer in layers)


def ragged_paged(model: PreTrainedModel, config: EngineConfig) -> Engine:
    """Builds a paged teaching engine. Raises `UnsupportedModelError` for a model whose attention
    ignores our mask."""
    is_stateful = has_states(model)
    refuse = refuse_batch_dependent if is_stateful else refuse_unbatchable
    refuse(NAME, model)
    implementation = model.config._attn_implementation
    if implementation not in ("eager", "sdpa"):
        why = f"it needs attention 'eager' or 'sdpa', which take a mask, not {implementation!r}"
        raise unsupported(NAME, model, why)
    engine_class = StatefulEngine if is_stateful else RaggedPagedEngine
    probe_logits(NAME, model, engine_class)
    return engine_class(model, config)
