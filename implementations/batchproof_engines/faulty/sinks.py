"""Steps that run on other kernels, which know no sinks or do not clamp a gate."""

import copy

from torch import Tensor
from transformers import PreTrainedModel

from batchproof.api import EngineConfig
from batchproof.findings.causes import Cause
from batchproof.models.embedded import SINK_MODEL
from batchproof.requirements.promises import Promise
from batchproof_engines.faulty.fault import planted
from batchproof_engines.ragged.scheduler import SchedulerOutput
from batchproof_engines.ragged_paged.engine import RaggedPagedEngine

NO_SINK = -1e4  # no weight beside any score


class OtherKernels(RaggedPagedEngine):
    """Some steps compute with kernels that leave a part of the model out."""

    def __init__(self, model: PreTrainedModel, config: EngineConfig) -> None:
        super().__init__(model, config)
        self._whole, self._lacking = self._model, copy.deepcopy(model)
        for layer in self._lacking.model.layers:
            self.leave_out(layer)

    def leave_out(self, layer: object) -> None:
        """Takes the part out of a layer: the sinks."""
        layer.self_attn.sinks.fill_(NO_SINK)  # type: ignore[attr-defined]

    def are_used(self, plan: SchedulerOutput) -> bool:
        """Returns whether a step runs on these kernels."""
        raise NotImplementedError

    def _packed_logits(self, plan: SchedulerOutput) -> Tensor:
        self._model = self._lacking if self.are_used(plan) else self._whole
        return super()._packed_logits(plan)


@planted(Promise.P7, Cause.CHUNK, "modular/modular#6591", shows_on=SINK_MODEL)
class LaterChunksHaveNoSinks(OtherKernels):
    """A step with a later chunk of a prompt runs on a general kernel, which knows no sinks."""

    def are_used(self, plan: SchedulerOutput) -> bool:
        return any(row.context_len and row.query_len > 1 for row in plan.rows)


@planted(Promise.P1, Cause.SHAPES, "sgl-project/sglang#39939", shows_on=SINK_MODEL)
class FullStepsDoNotClamp(OtherKernels):
    """A step of eight tokens or more runs its experts on a kernel that does not clamp their gates."""

    def leave_out(self, layer: object) -> None:
        layer.mlp.experts.limit = 1e4  # type: ignore[attr-defined]

    def are_used(self, plan: SchedulerOutput) -> bool:
        return sum(row.query_len for row in plan.rows) >= 8
