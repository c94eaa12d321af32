"""A request in the engine."""

from dataclasses import dataclass, field

from batchproof.api import FinishReason, Request, TokenLogprobs
from batchproof_engines.grammars import Matcher
from batchproof_engines.stopping import stops

ABORTED = FinishReason.ABORTED  # to look a member up takes longer than to compare it
PENDING = -1  # stands for a token that the device has chosen and the host has not read yet


@dataclass(slots=True, eq=False)
class Sequence:
    """Its tokens so far, how many of them are in the cache, and where.

    `block_table[i]` holds the keys and values of positions i * block_size and on. `lane` is the row of
    the engine's persistent tables that a running sequence owns, its slot; -1 while it waits.
    """

    request: Request
    token_ids: list[int]  # prompt and outputs
    num_computed_tokens: int = 0
    lane: int = -1
    block_table: list[int] = field(default_factory=list)
    num_published_blocks: int = 0  # full blocks offered to the prefix cache
    root: int = 0  # content id of nothing before it: its adapter's own
    content_id: int = 0  # of its last published block: see BlockManager
    matcher: Matcher | None = None  # of its grammar
    finish_reason: FinishReason | None = None
    logprobs: list[TokenLogprobs] = field(default_factory=list)  # one a token, if it asks for them
    prompt_logprobs: list[TokenLogprobs | None] = field(default_factory=list)  # likewise
    drafts: list[int] = field(default_factory=list)  # behind its tokens, in the step under way
    num_accepted: int = 0  # of them
    shadow: "Sequence | None" = None  # as a draft model has it
    ngram_ends: dict[object, int] = field(default_factory=dict)  # by n-gram: where it last ended
    max_num_tokens: int = field(init=False)  # prompt and cap

    def __post_init__(self) -> None:
        self.max_num_tokens = len(self.request.prompt_token_ids) + self.request.max_new_tokens

    @property
    def request_id(self) -> str:
        return self.request.request_id

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def num_prompt_tokens(self) -> int:
        return len(self.request.prompt_token_ids)

    @property
    def num_uncomputed_tokens(self) -> int:
        return len(self.token_ids) - self.num_computed_tokens

    @property
    def is_scored(self) -> bool:
        """Does it ask for logprobs of its prompt, some of which are not known yet?"""
        asked = self.request.sampling
        if asked is None or asked.prompt_logprobs is None:
            return False
        return len(self.prompt_logprobs) < self.num_prompt_tokens

    @property
    def output_token_ids(self) -> list[int]:
        return self.token_ids[len(self.request.prompt_token_ids) :]

    def append(self, token_id: int) -> bool:
        """Take the next token, `PENDING` if it is not known yet. Is it the last?"""
        self.token_ids.append(token_id)
        if token_id in self.request.eos_token_ids:
            self.finish_reason = FinishReason.STOP
        elif len(self.token_ids) == self.max_num_tokens:
            self.finish_reason = FinishReason.LENGTH
        if self.request.sampling is not None and stops(self.request, self.output_token_ids):
            self.finish_reason = FinishReason.STOP
        return self.finish_reason is not None

    def awaits(self, index: int) -> bool:
        """Is the token of that place wanted? Not after an abort, nor behind an EOS read late."""
        return index < len(self.token_ids) and self.finish_reason is not ABORTED

    def reveal(self, index: int, token_id: int) -> bool:
        """Put the token that was `PENDING` at `index` in its place. Is it an EOS? Then the sequence
        ends there, and what was appended behind it is dropped."""
        self.token_ids[index] = token_id
        is_eos = token_id in self.request.eos_token_ids
        if is_eos:
            del self.token_ids[index + 1 :]
            self.finish_reason = FinishReason.STOP
        return is_eos
