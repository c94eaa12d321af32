"""Probe packs: prompts, and how far the tokens that may answer them lie apart, by the weights.

A pack is made once where the weights are, and needs neither them nor a GPU where it is used. All widths
are in sigma: the root mean square of what the arithmetic that is claimed moves a margin by.
"""

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from batchproof.records.file_kinds import FileKind
from batchproof.records.provenance import Provenance

NUM_RANKED = 8  # tokens of a step that are ranked; those behind are the answers under configurations
SAME = (-1, -1)  # of a configuration that answers alike


@dataclass(frozen=True)
class Step:
    """One token of a greedy answer. `tokens` are those that may stand there, the best in float64 first,
    and `behind` is how far each is behind it, in sigma. `texts` are what each adds to the text of the
    answer before it; empty where tokens have no texts."""

    tokens: Annotated[tuple[int, ...], Field(min_length=1)]
    behind: tuple[float, ...]
    texts: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if len(self.tokens) != len(self.behind):
            raise ValueError("each of the tokens needs one `behind`")


@dataclass(frozen=True)
class Probe:
    """A prompt and the steps of its greedy answer, each behind the best tokens of those before it.

    `text` is what is sent where ids are not taken, or as a chat. `under` is for each configuration of
    the pack the first step that it answers otherwise, and the place of its token there; (-1, -1) where
    it answers alike. It is empty where no configuration was tried.
    """

    prompt: tuple[int, ...]
    steps: Annotated[tuple[Step, ...], Field(min_length=1)]
    text: str | None = None
    under: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True)
class PrecisionNoise:
    """How much coarser than what is claimed a precision is. `shift` is the root mean square of what it
    moves a margin by, in sigma; `scale` that of the noise that best describes the tokens that it
    chooses. `from_step`: the first token that shows it; a cache that is rounded
    shows where it is read, from the second on."""

    name: str
    shift: float
    scale: float
    from_step: int = 0


@dataclass(frozen=True)
class ProbePack:
    """`unit` is sigma in units of a logit. `is_chat`: prompts are rendered chats of one turn."""

    made: Provenance
    model: str
    dtype: str
    seed: int
    vocab_size: int
    unit: Annotated[float, Field(gt=0)]
    precisions: tuple[PrecisionNoise, ...]
    configurations: tuple[str, ...]
    probes: Annotated[tuple[Probe, ...], Field(min_length=1)]
    is_chat: bool = False


PROBE_PACK = FileKind("probe pack", "batchproof.probe-pack", 1, ProbePack)
