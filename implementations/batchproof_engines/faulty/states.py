"""Recurrent states that are lost, doubled, rounded, of another sequence, or not those of a prefix."""

import copy
from collections.abc import Callable, Iterator
from typing import TypeVar

from torch import Tensor
from transformers import PreTrainedModel

from batchproof.api import EngineConfig
from batchproof.findings.causes import Cause
from batchproof.models.embedded import DELTA_NET_MODEL, STATE_MODEL
from batchproof.requirements.promises import Promise
from batchproof_engines.faulty.fault import planted
from batchproof_engines.ragged.scheduler import Sequence
from batchproof_engines.ragged_paged.states import (
    Checkpoints,
    Piece,
    StatefulEngine,
    States,
    StatesByLane,
    joined,
)

Part = TypeVar("Part", bound=type)
CONVOLUTION, RECURRENCE = "conv_states", "recurrent_states"


def planted_in_states(
    promise: Promise, thread: str, shows_on: str = STATE_MODEL
) -> Callable[[Part], Part]:
    """Returns a decorator that registers a part of the engine that carries states as a fault."""
    return planted(promise, Cause.STATE, thread, shows_on=shows_on)


def tensors(states: States, kind: str) -> Iterator[Tensor]:
    """Yields the states of a kind of all layers, each (B, ...)."""
    for layer in states:
        yield from (each for each in getattr(layer, kind).values() if each is not None)


@planted_in_states(Promise.P8, "vllm-project/vllm#56524")
class StateIsLeftToTheNextTenant(StatesByLane):
    """Nothing clears the state of a lane: a prompt starts from what the last tenant left there."""

    def read(self, group: list[Piece]) -> States | None:
        if any(piece.context_len or not self.is_left(piece) for piece in group):
            return super().read(group)
        return joined([(self.lanes[piece.lane], 0) for piece in group])

    def is_left(self, piece: Piece) -> bool:
        return piece.lane in self.lanes


@planted_in_states(Promise.P5, "ml-explore/mlx-lm#1129")
class StatesStayBehindWhenTheBatchGrows(StatesByLane):
    """A seventeenth sequence gets a larger store, and the others there the states of the first."""

    def write(self, group: list[Piece], states: States) -> None:
        before = [*self.lanes]
        super().write(group, states)
        if len(before) <= 16 < len(self.lanes):
            first = self.lanes[before[0]]
            self.lanes |= {lane: joined([(first, 0)]) for lane in before}


class _LeftByAborted(StateIsLeftToTheNextTenant):
    aborted: frozenset[int] = frozenset()  # lanes whose last tenant was aborted

    def is_left(self, piece: Piece) -> bool:
        return piece.lane in self.aborted

    def write(self, group: list[Piece], states: States) -> None:
        super().write(group, states)
        self.aborted -= {piece.lane for piece in group}


@planted_in_states(Promise.P13, "ml-explore/mlx-lm#1736")
class StateOutlivesAnAbort(StatefulEngine):
    """An abort clears nothing: the next tenant of the lane starts from the aborted one's state."""

    states_class = _LeftByAborted
    _states: _LeftByAborted

    def abort(self, request_id: str) -> None:
        lane = self._scheduler.lanes.get(request_id)
        if lane is not None and lane in self._states.lanes:
            self._states.aborted |= {lane}
        super().abort(request_id)


@planted_in_states(Promise.P7, "vllm-project/vllm#8533")
class ChunksForgetTheWindow(StatesByLane):
    """A chunk goes on with the recurrence, but the convolution sees zeros before it."""

    def read(self, group: list[Piece]) -> States | None:
        states = super().read(group)
        if states is not None and group[0].query_len > 1:
            for each in tensors(states, CONVOLUTION):
                each.zero_()
        return states


@planted_in_states(Promise.P1, "sgl-project/sglang#34760")
class TheLastTokenOfAPromptCountsTwice(StatefulEngine):
    """A prompt's last token is fed to the states again before the first decode."""

    def feed(self, group: list[Piece]) -> Tensor:
        lens = [len(piece.sequence.request.prompt_token_ids) for piece in group]
        again = [
            piece._replace(context_len=piece.context_len - 1)
            for piece, num in zip(group, lens, strict=True)
            if piece.query_len == 1 and piece.context_len == num > 1
        ]
        if again:
            super().feed(again)
        return super().feed(group)


@planted_in_states(Promise.P1, "vllm-project/vllm#35157")
class RecomputingGoesOnFromTheOldState(StatesByLane):
    """A preempted request is fed from the start again, upon the state that it had."""

    def __init__(self) -> None:
        super().__init__()
        self._known: dict[int, States] = {}

    def read(self, group: list[Piece]) -> States | None:
        if any(piece.context_len or not piece.sequence.output_token_ids for piece in group):
            return super().read(group)
        return joined([(self._known[id(piece.sequence)], 0) for piece in group])

    def write(self, group: list[Piece], states: States) -> None:
        super().write(group, states)
        self._known.update((id(piece.sequence), self.lanes[piece.lane]) for piece in group)


@planted_in_states(Promise.P1, "vllm-project/vllm#13466", shows_on="bamba-random")
class RecurrenceIsKeptInBfloat16(StatesByLane):
    """Between passes the recurrence is kept in bfloat16, whatever the model's dtype."""

    def write(self, group: list[Piece], states: States) -> None:
        for each in tensors(states, RECURRENCE):
            each.copy_(each.bfloat16().to(each.dtype))
        super().write(group, states)


@planted_in_states(Promise.P1, "gittensor-ai-lab/sparkinfer#615", shows_on=DELTA_NET_MODEL)
class StatesOfAPromptAreTransposed(StatesByLane):
    """The pass over a prompt leaves the state of a delta net transposed, and decodes read that."""

    def write(self, group: list[Piece], states: States) -> None:
        if group[0].query_len > 1:
            for each in tensors(states, RECURRENCE):
                each.copy_(each.mT.clone())
        super().write(group, states)


@planted(Promise.P5, Cause.LEAK, "vllm-project/vllm#51812", shows_on=DELTA_NET_MODEL)
class GatesAreThoseOfTheRowBefore(StatefulEngine):
    """The rows of a pass are brought into another order, and the gates of a delta net are not."""

    def __init__(self, model: PreTrainedModel, config: EngineConfig) -> None:
        super().__init__(copy.deepcopy(model), config)
        for name, part in self._model.named_modules():
            if name.endswith(".in_proj_ba"):
                part.register_forward_hook(lambda _part, _given, gates: gates.roll(1, 0))


@planted_in_states(Promise.P1, "ggml-org/llama.cpp#26557")
class StateOfALongerPromptIsTaken(Checkpoints):
    """Behind a known prefix a prompt starts with the states of the longest prompt that has it, which
    hold that prompt's other tokens as well."""

    def behind(self, sequence: Sequence, num_blocks: int) -> States | None:
        prefix = self.blocks.prefix(sequence, num_blocks - 1)
        longer = [each for each in self.kept if each[: len(prefix)] == prefix]
        return self.kept[max(longer, key=len)] if longer else None


@planted_in_states(Promise.P7, "vllm-project/vllm#47861")
class StateIsAheadOfItsBorder(Checkpoints):
    """A chunk is not cut at a block border: the states behind it are kept for the border before."""

    def places(self, sequence: Sequence) -> set[int]:  # noqa: ARG002
        return set()

    def keep(self, piece: Piece, states: States, place: int) -> None:
        num_blocks = (piece.end - 1) // self.blocks.block_size
        if piece.query_len > 1 and num_blocks:
            prefix = self.blocks.prefix(piece.sequence, num_blocks - 1)
            self.kept[prefix] = joined([(states, place)])
