"""Draft heads that are fed wrong hidden states or tokens: answers stay right, and drafts are lost."""

import torch
from torch import Tensor

from batchproof.findings.causes import Cause
from batchproof.models.embedded import HEAD_MODEL
from batchproof.requirements.promises import Promise
from batchproof_engines.faulty.fault import planted
from batchproof_engines.ragged.scheduler import SchedulerOutput
from batchproof_engines.ragged_paged.drafting import HeadDrafter
from batchproof_engines.ragged_paged.engine import RaggedPagedEngine


@planted(Promise.P17, Cause.SPECULATION, "vllm-project/vllm#36531", shows_on=HEAD_MODEL)
class AChainIsFedTheModelsHiddenState(HeadDrafter):
    """Each draft behind the first follows the model's last hidden state again, not the head's own."""

    def chained(self, states: Tensor, made: Tensor) -> Tensor:  # noqa: ARG002
        return torch.cat((states, states[:, -1:]), 1)


@planted(Promise.P17, Cause.SPECULATION, "vllm-project/vllm#14464", shows_on=HEAD_MODEL)
class AHeadIsFedTokensOneTooEarly(HeadDrafter):
    """The first token of a prompt is not taken off, so each hidden state meets its own token."""

    def made(self, tokens: list[int], states: Tensor) -> Tensor:
        return super().made([tokens[0], *tokens[:-1]], states)


@planted(Promise.P17, Cause.SPECULATION, "vllm-project/vllm#7508", shows_on=HEAD_MODEL)
class HiddenStatesOfRowsAreMixedUp(RaggedPagedEngine):
    """In a step with rows of several lengths the hidden states of one go to the places of another."""

    def keep_hidden_states(self, plan: SchedulerOutput, states: Tensor) -> None:
        if len({row.query_len for row in plan.rows}) > 1:
            states = states.roll(plan.rows[0].query_len, 1)
        super().keep_hidden_states(plan, states)
