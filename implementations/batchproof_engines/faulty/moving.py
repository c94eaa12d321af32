"""Blocks that lose their content on the way to the host's memory, back, or to another engine.

These are parts of `paged`: the teaching engines move no blocks.
"""

from typing import ClassVar

from batchproof.findings.causes import Cause
from batchproof.requirements.promises import Promise
from batchproof_engines.faulty.fault import planted
from batchproof_paged.block_manager import OFFLOADED, Move
from batchproof_paged.engine import Landed, PagedEngine
from batchproof_paged.scheduler import SchedulerOutput
from batchproof_paged.transfer import TransferEngine


class _Offloading(PagedEngine):
    asked: ClassVar[dict[str, object]] = {"offload": 8}


@planted(Promise.P1, Cause.STALE, "NVIDIA/TensorRT-LLM#9056")
class SlotsAreFilledBeforeTheyAreRead(_Offloading):
    """A block that is offloaded does not wait until the block before it has left the slot."""

    def _move_blocks(self) -> None:
        self._scheduler.blocks.moves.sort(key=lambda move: move.kind != OFFLOADED)
        super()._move_blocks()


@planted(Promise.P1, Cause.STALE, "vllm-project/vllm#45704")
class BlocksAreOffloadedTooLate(_Offloading):
    """A block is offloaded after the step that gave it to another request."""

    _late: tuple[Move, ...] = ()

    def _move_blocks(self) -> None:
        moves = self._scheduler.blocks.moves
        late = tuple(each for each in moves if each.kind == OFFLOADED)
        moves[:] = [*self._late, *(each for each in moves if each.kind != OFFLOADED)]
        self._late = late
        super()._move_blocks()


@planted(Promise.P1, Cause.STALE, "ai-dynamo/dynamo#826")
class BlocksAreFreedBeforeTheirTransfer(TransferEngine):
    """The engine that computes prompts may write to blocks again before they are transferred."""

    asked: ClassVar[dict[str, object]] = {"transfer": True}

    def _carry_out(self, plan: SchedulerOutput) -> Landed:
        self._prompts._carry_out(self._prompts._scheduler.schedule())
        landed = PagedEngine._carry_out(self, plan)
        self._tell()
        self._scheduler.receive()
        return landed
