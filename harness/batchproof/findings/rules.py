"""Every rule that a check can find broken, in one entry each.

An entry holds the rule's promise, the cause that it names by itself, the capability without which no
engine shows it, how it is judged again, its facts with their types, and its words: a headline and the
lines of evidence below it. The words are filled with the facts, `request_id` and `step`; a line `*name`
stands for each line of the fact `name`. An entry's name is the rule's id: `LATE_ROWS` is `late-rows`.
"""

from collections.abc import Mapping
from enum import Enum
from functools import partial
from types import GenericAlias, NoneType, UnionType
from typing import Any, Self, get_args, get_origin

from batchproof.api import Capability
from batchproof.findings.causes import Cause
from batchproof.requirements.promises import Promise

FactType = type | GenericAlias | UnionType
Facts = dict[str, Any]  # types in a declaration, values in a finding
LINES = tuple[str, ...]
INTS = tuple[int, ...]
FRAME = tuple[str | int, ...]  # file, line, function
NON_FINITE = ("nan", "inf", "-inf")  # JSON has no such numbers, so findings hold these texts
GOT_AND_CAP = ("got: {got} ({finish_reason})", "max_new_tokens {cap}, eos {eos}")
GOT_AND_RIGHT = ("got:       {got}", "should be: {should_be}")
BEFORE_AND_AFTER = ("before: {before}", "after:  {after}")
WRONG_BITS = (
    "{first}, and {num_others} more bits differ from the definition",
    "rows (cached, fed): {layout}; window {window}",
)
ENDED: Facts = {"got": INTS, "num_tokens": int, "finish_reason": str, "cap": int, "eos": INTS}
ASKED: Facts = {"layout": tuple[INTS, ...], "window": int | None}
QUERY: Facts = {"query": int, "position": int, "bound": float, "moved": float}
THROWN: Facts = {
    "error": str,
    "message": str,
    "frames": LINES,
    "notes": LINES | None,  # such as what a program has written to stderr
    "at": FRAME | None,
}
CHOSEN: Facts = {
    "token": int,
    "right_token": int,
    "got": INTS,
    "should_be": INTS,
    "margin": float,
    "bound": float,
}
LATE: Facts = {"sampled_in": int, "granted": str}
STANDING: Facts = {"kind": str, "since": int}
FREE: Facts = {"num_free": int, "num_total": int}


class Replay(Enum):
    """How the scene of a failure is judged again."""

    CALLS = "every answer and the conduct of all calls"
    COMPARE = "the answers to one request in two scenes"
    MASK = "the mask of one layout"
    REFUSAL = "the answer to one bad request"
    GRADE = "the grade along one axis of invariance"
    RETURNED = "the logits returned before, after later calls"
    CRASH = "as CALLS; other failures do not turn into one"
    HANG = "as CALLS; it would only hang again at once"


# The cause that goes with a broken promise, where nothing more is known.
CAUSE_OF_PROMISE: Mapping[Promise, Cause] = {
    Promise.P2: Cause.CAP,
    Promise.P3: Cause.EOS,
    Promise.P4: Cause.ORDER,
    Promise.P6: Cause.MASK,
    Promise.P7: Cause.POSITION,
    Promise.P9: Cause.SCHEDULING,
    Promise.P10: Cause.LIVENESS,
    Promise.P11: Cause.ACCOUNTING,
    Promise.P12: Cause.INPUT,
    Promise.P13: Cause.CANCEL,
    Promise.P14: Cause.STREAM,
    Promise.P15: Cause.SIDE_EFFECT,
    Promise.P16: Cause.RACE,
    Promise.P17: Cause.SPECULATION,
    Promise.P18: Cause.LOGPROBS,
    Promise.P19: Cause.SAMPLING,
    Promise.P20: Cause.SHAPES,
    Promise.P21: Cause.ADAPTER,
    Promise.P22: Cause.GRAMMAR,
    Promise.P23: Cause.LIFECYCLE,
}
# Promises about behaviour, which wrong tokens cannot break: their own rules name the cause above.
ABOUT_BEHAVIOUR = {*(Promise.P4, Promise.P9, Promise.P10, Promise.P11, Promise.P14, Promise.P15)}


class Declared:
    """What a rule is made of. A fact whose type allows None may be left out."""

    words: tuple[str, ...] = ()

    def __init__(
        self,
        promise: Promise,
        *,
        cause: Cause | None = None,
        needs: Capability | None = None,
        replay: Replay = Replay.CALLS,
        **facts: FactType,
    ) -> None:
        self.promise, self.cause = promise, cause
        self.needs, self.replay = needs, replay
        self.facts: Mapping[str, FactType] = facts

    def says(self, *words: str) -> Self:
        self.words = words
        return self


traced = partial(Declared, needs=Capability.TRACING)
scheduled = partial(Declared, promise=Promise.P9, needs=Capability.SCHEDULING)
of_logits = partial(Declared, needs=Capability.LOGITS)
masking = partial(Declared, promise=Promise.P6, needs=Capability.MASKING, replay=Replay.MASK)
sampling = partial(Declared, promise=Promise.P19)
drawing = partial(sampling, cause=Cause.SAMPLING)
logprobs = partial(Declared, promise=Promise.P18)


def ints(*names: str) -> Facts:
    return dict.fromkeys(names, int)


class Rule(Enum):
    """All rules, by what they are about; the promise is theirs unless a finding states another."""

    # what the engine serves (`plugin.trials`)
    MODEL_REFUSED = Declared(Promise.P1, model=str, source=str, why=str).says(
        "the engine refuses {model}, which it serves by {source}", "{why}"
    )
    # the answers of one call (`checks.answers`, `checks.contract_types`)
    RETURN_TYPE = Declared(Promise.P4, got=str).says(
        "generate returned a {got}, but should return a list of Completions"
    )
    COMPLETION_TYPE = Declared(Promise.P4, got=str, item=str).says(
        "generate returned a {got} that holds a {item}, but should return a list of Completions"
    )
    COMPLETION_FIELD = Declared(Promise.P4, got=str, should_be=str).says(
        "the completion of request {request_id!r} has {got}, but should be {should_be}"
    )
    COUNT = Declared(Promise.P4, num_requests=int, num_completions=int).says(
        "{num_requests} requests, but {num_completions} completions"
    )
    ORDER = Declared(Promise.P4, cause=Cause.ORDER, ids=LINES).says(
        "the completions are not in input order", "*ids"
    )
    STRANGER = Declared(Promise.P4, cause=Cause.ROUTING, stranger=str, lost=str, ids=LINES).says(
        "{stranger!r} is answered, which was not requested, and {lost!r} is not", "*ids"
    )
    TWICE = Declared(Promise.P4, cause=Cause.ROUTING, twice=str, lost=str, ids=LINES).says(
        "{twice!r} is answered twice, and {lost!r} is not", "*ids"
    )
    MISSING = Declared(Promise.P4, cause=Cause.DROPPED, lost=str, ids=LINES).says(
        "request {lost!r} has no completion", "*ids"
    )
    SURPLUS = Declared(Promise.P4, cause=Cause.DROPPED, ids=LINES).says(
        "there are too many completions", "*ids"
    )
    GOOD_REFUSED = Declared(Promise.P12, error=str | None).says(
        "request {request_id!r} is a good request, but was answered with an error: {error}"
    )
    ABORTED_UNASKED = Declared(Promise.P13, cause=Cause.CANCEL).says(
        "request {request_id!r} was aborted without a call of abort"
    )
    CAP = Declared(Promise.P2, **ENDED).says(
        "request {request_id!r} got {num_tokens} tokens, but its cap is {cap}", *GOT_AND_CAP
    )
    SHORT = Declared(Promise.P2, **ENDED).says(
        "request {request_id!r} got {num_tokens} tokens without an EOS, but should get {cap}",
        *GOT_AND_CAP,
    )
    EOS = Declared(Promise.P3, token=int, **ENDED).says(
        "request {request_id!r} goes on after its end, token {token} at step {step}", *GOT_AND_CAP
    )
    FINISH_REASON = Declared(Promise.P3, should_be=str, **ENDED).says(
        "request {request_id!r} finished with {finish_reason}, but should finish with {should_be}",
        *GOT_AND_CAP,
    )
    VOCABULARY = Declared(Promise.P1, **ints("token", "last_token", "should_be")).says(
        "request {request_id!r} step {step}: got token {token}, which is outside the vocabulary "
        "(0 to {last_token}), but should be {should_be}"
    )
    TOKEN = Declared(Promise.P1, **CHOSEN, kappa=float).says(
        "request {request_id!r} step {step}: got token {token}, but should be {right_token}",
        *GOT_AND_RIGHT,
        "margin of the right token {margin:.3g}; rounding explains {bound:.2g} (2 kappa E; kappa "
        "{kappa:g})",
    )
    CHOICE = Declared(Promise.P1, got=INTS, bound=float).says(
        "request {request_id!r}: a token is not the best choice after those before it, by more "
        "than rounding explains",
        "got: {got}",
        "rounding explains {bound:.2g}",
    )
    NEAR_TIES = Declared(Promise.P1, **ints("num_near_ties", "num_steps", "budget"), share=float).says(
        "{num_near_ties} near-ties in {num_steps} steps; chance allows {budget}",
        "{share:.2%} of the reference's own steps could flip",
    )
    LOGITS_MISSING = of_logits(Promise.P1).says(
        "the engine has the capability logits, but those of request {request_id!r} are None "
        "although config.return_logits is set"
    )
    LOGITS_SHAPE = of_logits(Promise.P1, got=str, should_be=str).says(
        "request {request_id!r} has logits of shape {got}, but should be {should_be}"
    )
    LOGITS_FINITE = of_logits(Promise.P1).says(
        "request {request_id!r}: its logits hold NaN or infinity"
    )
    LOGITS = of_logits(Promise.P1, off=float, bound=float, kappa=float, unit=float).says(
        "request {request_id!r} step {step}: the logits are off by {off:.3g}, but rounding "
        "reaches {bound:.2g}",
        "kappa {kappa:g}, E {unit:.2g}; the tokens are right all the same",
    )
    LOGITS_RMS = of_logits(Promise.P1, off=float, bound=float).says(
        "request {request_id!r}: the logits are off by {off:.3g} on average (rms), but rounding "
        "reaches {bound:.2g}"
    )
    # what requests ask for besides (`checks.answers`, `checks.logprobs`, `checks.draws`)
    PROCESSED = sampling(**CHOSEN, sampling=str).says(
        "request {request_id!r} step {step}: got token {token}, but its parameters make "
        "{right_token} the best",
        *GOT_AND_RIGHT,
        "the better token leads by {margin:.3g}; rounding explains {bound:.2g}",
        "{sampling}",
    )
    FORBIDDEN = sampling(token=int, got=INTS, sampling=str).says(
        "request {request_id!r} step {step}: got token {token}, which its parameters exclude",
        "got: {got}",
        "{sampling}",
    )
    UNGRAMMATICAL = Declared(
        Promise.P22,
        cause=Cause.GRAMMAR,
        needs=Capability.STRUCTURED,
        token=int,
        allowed=INTS,
        eos=INTS,
        got=INTS,
        grammar=str,
    ).says(
        "request {request_id!r} step {step}: got token {token}, which its grammar does not allow there",
        "got: {got}, eos {eos}",
        "allowed: {allowed}",
        "{grammar}",
    )
    GRAMMATICAL_CHOICE = Declared(Promise.P22, needs=Capability.STRUCTURED, **CHOSEN, grammar=str).says(
        "request {request_id!r} step {step}: got token {token}, but {right_token} is the best that its "
        "grammar allows",
        *GOT_AND_RIGHT,
        "the better token leads by {margin:.3g}; rounding explains {bound:.2g}",
        "{grammar}",
    )
    SEED = drawing(
        **ints("num_changed", "num_requests", "budget"),
        seeds=INTS,
        relation=str,
        before=INTS,
        after=INTS,
    ).says(
        "{num_changed} of {num_requests} requests with a seed are answered differently "
        "{relation}; chance allows {budget}",
        "first request {request_id!r}: before {before}, after {after}",
    )
    SEED_IGNORED = drawing(**ints("num_requests", "seed", "other"), before=INTS).says(
        "all {num_requests} requests with seed {seed} are answered as with seed {other}; request "
        "{request_id!r}: {before}"
    )
    REPEATED_DRAWS = drawing(**ints("num_equal", "num", "lag", "budget"), other=str).says(
        "of {num} tokens drawn for request {request_id!r}, {num_equal} are those of {other!r} {lag} "
        "tokens before; chance allows {budget}"
    )
    FREQUENCIES = drawing(statistic=float, degrees=int, p_value=float, cells=LINES, sampling=str).says(
        "the tokens drawn do not have their probabilities: G = {statistic:.1f} with {degrees} "
        "degrees of freedom, p = {p_value:.1g}",
        "*cells",
        "{sampling}",
    )
    LOGPROBS_MISSING = logprobs(num_tokens=int, got=int).says(
        "request {request_id!r} asks for logprobs and has {num_tokens} tokens, but {got} of them "
        "have some"
    )
    PROMPT_LOGPROBS_MISSING = logprobs(num_tokens=int, got=str).says(
        "request {request_id!r} asks for logprobs of its {num_tokens} prompt tokens: an entry for "
        "each, None for the first alone; got {got}"
    )
    LOGPROB = logprobs(where=str, token=int, got=float, should_be=float, bound=float).says(
        "request {request_id!r} {where}: the logprob of token {token} is {got:.6g}, but should be "
        "{should_be:.6g}, within {bound:.2g}"
    )
    RANK = logprobs(where=str, token=int, got=int | None, should_be=str).says(
        "request {request_id!r} {where}: the rank of token {token} is {got}, but should be {should_be}"
    )
    TOP_LOGPROBS = logprobs(where=str, what=str, got=str, should_be=str).says(
        "request {request_id!r} {where}: of the likeliest tokens {what}", *GOT_AND_RIGHT
    )
    # bad requests (`checks.refusals`)
    REFUSED = Declared(
        Promise.P12,
        cause=Cause.INPUT,
        replay=Replay.REFUSAL,
        finish_reason=str,
        **ints("num_tokens", "cap", "num_prompt_tokens"),
    ).says(
        "bad request {request_id!r} was answered with {finish_reason} and {num_tokens} tokens, "
        "but should be refused",
        "max_new_tokens {cap}, {num_prompt_tokens} prompt tokens",
    )
    REFUSAL_WORDS = Declared(
        Promise.P12, cause=Cause.INPUT, replay=Replay.REFUSAL, error=str, others=LINES
    ).says(
        "bad request {request_id!r} was refused with {error!r}, which names neither a value at "
        "fault nor a limit that it breaks",
        "*others",
    )
    LIVE_ID = Declared(Promise.P12, what=str).says("add of the live id {request_id!r} {what}")
    # two runs compared (`run.relations`)
    RELATION = Declared(Promise.P5, replay=Replay.COMPARE, relation=str, before=str, after=str).says(
        "request {request_id!r} is answered differently {relation}", *BEFORE_AND_AFTER
    )
    RELATION_LOGITS = of_logits(
        Promise.P5,
        replay=Replay.COMPARE,
        relation=str,
        moved=float,
        allowed=float,
        before=INTS,
        after=INTS,
    ).says(
        "request {request_id!r} step {step}: its logits moved by {moved:.3g} {relation}",
        "allowed: {allowed:.2g} (0: all shapes are the same)",
        "tokens before {before}, after {after}",
    )
    RETURNED = of_logits(Promise.P8, cause=Cause.STALE, replay=Replay.RETURNED).says(
        "request {request_id!r}: the logits that were returned have changed after a later call"
    )
    REPEATS = Declared(Promise.P16, first=str, then=str).says(
        "the same call was answered differently", "first: {first}", "then:  {then}"
    )
    INVARIANCE = Declared(
        Promise.P20,
        cause=Cause.SHAPES,
        replay=Replay.GRADE,
        axis=str,
        what=str,
        declared=str,
        got=str,
        worst=str,
        num_tokens=int,
        before=INTS,
        after=INTS,
    ).says(
        "the grade along {axis} is {got}, but the engine declares {declared}: {what}",
        "request {request_id!r}: its logits move by {worst} E, and {num_tokens} of its tokens stay",
        *BEFORE_AND_AFTER,
    )
    # attention seen from outside (`checks.masks`)
    MASK_SHAPE = masking(got=str, should_be=str, **ASKED).says(
        "the mask is {got}, but should be {should_be}"
    )
    MASK = masking(cause=Cause.MASK, first=str, num_others=int, **ASKED).says(*WRONG_BITS)
    MASK_LEAK = masking(cause=Cause.LEAK, first=str, num_others=int, **ASKED).says(*WRONG_BITS)
    UNSEEN_MOVES = of_logits(Promise.P6, replay=Replay.COMPARE, **QUERY).says(
        "query {query} moved by {moved:.3g}, but cannot see position {position}"
    )
    SEEN_STAYS = of_logits(Promise.P6, replay=Replay.COMPARE, **QUERY).says(
        "query {query} did not move, but must see position {position}"
    )
    # the trace (`checks.trace`, `checks.scheduling`, `checks.contract_types`)
    TRACE_TYPE = Declared(Promise.P11, got=str).says(
        "trace is {got}, but should be a sequence of StepRecords that hold RowRecords"
    )
    NAMES = traced(Promise.P7, name=str).says(
        "step {step}: the trace names {name!r}, which was not requested"
    )
    POSITIONS = traced(Promise.P7, context_len=int, num_fed=int).says(
        "step {step}, request {request_id!r}: context_len is {context_len}, but {num_fed} tokens "
        "were fed before"
    )
    QUERY_LEN = traced(Promise.P7, query_len=int, num_due=int).says(
        "step {step}, request {request_id!r}: query_len is {query_len}, but {num_due} tokens were due"
    )
    SAMPLED = traced(Promise.P7, is_sampled=bool, num_fed=int, num_known=int).says(
        "step {step}, request {request_id!r}: is_sampled is {is_sampled}, but {num_fed} of "
        "{num_known} tokens are fed"
    )
    DRAFTS = traced(
        Promise.P17, cause=Cause.SPECULATION, **ints("num_drafted", "num_accepted", "most")
    ).says(
        "step {step}, request {request_id!r}: num_drafted is {num_drafted} and num_accepted "
        "{num_accepted}, but this row may have at most {most} drafts, and accept no more than it "
        "has"
    )
    RIGHT_DRAFT = traced(
        Promise.P17, cause=Cause.SPECULATION, **ints("num_drafted", "num_accepted")
    ).says(
        "step {step}, request {request_id!r}: {num_accepted} of {num_drafted} drafts are kept, but a "
        "draft that is right for every token is kept up to the end of the answer"
    )
    PREFIX = traced(Promise.P7, cause=Cause.STALE, num_tokens=int).says(
        "step {step}, request {request_id!r}: it begins behind {num_tokens} tokens that were "
        "never computed"
    )
    TWO_ROWS = traced(Promise.P9, ids=LINES).says("step {step}: a request has two rows: {ids}")
    QUEUES = traced(Promise.P9, what=str).says("step {step}: {request_id!r} {what}")
    SLOTS = traced(Promise.P9, num_rows=int, max_num_seqs=int).says(
        "step {step}: {num_rows} rows, but max_num_seqs is {max_num_seqs}"
    )
    TOKEN_BUDGET = scheduled(num_fed=int, max_num_batched_tokens=int).says(
        "step {step}: {num_fed} tokens were fed, but max_num_batched_tokens is {max_num_batched_tokens}"
    )
    MAX_LORAS = scheduled(adapters=LINES, max_loras=int).says(
        "step {step}: its rows name the adapters {adapters}, but max_loras is {max_loras}"
    )
    FIRST_COME = scheduled(waiting=str).says(
        "step {step}: {request_id!r} was admitted before {waiting!r}, which came first"
    )
    ARRIVAL_ORDER = scheduled(got=LINES, should_be=LINES).says(
        "step {step}: requests were admitted out of the order of arrival", *GOT_AND_RIGHT
    )
    DECODES = scheduled(rows=LINES).says(
        "step {step}: running request {request_id!r} got no token", "rows: {rows}"
    )
    REFILL = scheduled(**ints("num_running", "max_num_seqs", "room"), running=LINES).says(
        "step {step}: {num_running} of {max_num_seqs} slots are used, but {request_id!r} waits",
        "running: {running}",
        "tokens left in the step: {room}",
    )
    LATE_FINISH = scheduled(**LATE).says(
        "step {step}: request {request_id!r} finishes, but its last token was sampled in step "
        "{sampled_in}",
        "{granted}",
    )
    LATE_ADMISSION = scheduled(**LATE).says(
        "step {step}: request {request_id!r} is admitted, but its last token was sampled in step "
        "{sampled_in}",
        "{granted}",
    )
    LATE_ROWS = scheduled(**LATE, num_tokens=int).says(
        "step {step}: {num_tokens} tokens of request {request_id!r} are fed, but its last token "
        "was sampled in step {sampled_in}",
        "{granted}",
    )
    LATE_SLOTS = scheduled(num_running=int, num_slots=int, running=LINES).says(
        "step {step}: {num_running} requests hold {num_slots} slots", "running: {running}"
    )
    STEP_BOUND = traced(Promise.P10, num_steps=int, bound=int).says(
        "{num_steps} steps for a workload of at most {bound}"
    )
    IDLE_STEP = traced(Promise.P10).says("step {step} fed nothing")
    FINISHED_ONCE = traced(Promise.P10, num_times=int).says(
        "request {request_id!r} finished {num_times} times"
    )
    POOL = traced(Promise.P11, **FREE).says("step {step}: {num_free} blocks of {num_total} are free")
    ACCOUNTING = traced(
        Promise.P11,
        **ints("num_used", "least", "most", "num_free", "num_total", "block_size"),
        running=LINES,
    ).says(
        "step {step}: {num_used} blocks are used, but those running can own {least} to {most}",
        "running: {running}",
        "free {num_free} of {num_total}, block_size {block_size}",
    )
    LEFTOVER_BLOCKS = traced(Promise.P11, num_free=int | None, num_total=int | None).says(
        "at the end {num_free} of {num_total} blocks are free, not all"
    )
    NUM_SAMPLED = traced(Promise.P14, **ints("num_sampled", "num_tokens", "num_surplus")).says(
        "request {request_id!r} was sampled {num_sampled} times, but has {num_tokens} tokens",
        "surplus rows that may be discarded: {num_surplus}",
    )
    # events (`checks.conduct`, `checks.contract_types`)
    STEP_TYPE = Declared(Promise.P14, got=str).says(
        "step returned a {got}, but should return a list of TokenEvents"
    )
    EVENT_TYPE = Declared(Promise.P14, got=str).says(
        "step returned a {got}, but should return TokenEvents"
    )
    EVENT_FIELD = Declared(Promise.P14, got=str, should_be=str).says(
        "an event of request {request_id!r} has {got}, but should be {should_be}"
    )
    LAST_EVENT = Declared(Promise.P14, reasons=tuple[str | None, ...]).says(
        "request {request_id!r}: its last event, and no other, must carry the finish reason",
        "finish reasons: {reasons}",
    )
    EMPTY_EVENT = Declared(Promise.P14).says("request {request_id!r}: an event carries no token")
    NUM_EVENTS = Declared(Promise.P14, num_events=int, cap=int).says(
        "request {request_id!r}: {num_events} events, but its cap is {cap}"
    )
    STRANGE_EVENT = Declared(Promise.P14).says(
        "an event is of request {request_id!r}, which was not requested"
    )
    REFUSAL_EVENT = Declared(Promise.P14, replay=Replay.REFUSAL, got=str).says(
        "a refused request must yield one ERROR event with a message, got {got}"
    )
    # engines that sleep or are paused (`checks.lifecycle`)
    STANDING_TOKEN = Declared(Promise.P23, **STANDING).says(
        "request {request_id!r} got a token in step {step}, but {kind} was called before step {since}"
    )
    STANDING_STEP = Declared(Promise.P23, **STANDING).says(
        "step {step} fed something, but {kind} was called before step {since}"
    )
    # cancelled requests (`run.cancelling`)
    CANCELLED_TOKEN = Declared(Promise.P13, cancelled_at=int).says(
        "request {request_id!r} was cancelled before step {cancelled_at}, but got a token in step "
        "{step}"
    )
    CANCELLED_ANSWER = Declared(Promise.P13, got=INTS, should_be=INTS).says(
        "cancelled request {request_id!r} had wrong tokens", *GOT_AND_RIGHT
    )
    CANCELLED_FED = traced(
        Promise.P13, cause=Cause.CANCEL, **ints("cancelled_at", "num_records", "record")
    ).says(
        "request {request_id!r} was cancelled before step {cancelled_at}, when the trace had "
        "{num_records} records, but record {record} still feeds it"
    )
    CANCELLED_ROW = traced(Promise.P13).says("a cancelled request is still being fed")
    CANCELLED_BLOCKS = traced(Promise.P13, cause=Cause.CANCEL, num_free=int, num_total=int).says(
        "{num_free} of {num_total} blocks are free at the end: a cancelled request still holds some"
    )
    FREED_TWICE = traced(Promise.P13, cause=Cause.ACCOUNTING, num_free=int, num_total=int).says(
        "{num_free} of {num_total} blocks are free at the end: some were freed twice"
    )
    NOT_ABORTED = Declared(Promise.P13, finish_reason=str).says(
        "request {request_id!r} ended with {finish_reason}, but should be aborted"
    )
    ABORTED_LENGTH = Declared(Promise.P13, num_tokens=int, got=INTS, should_have=str).says(
        "request {request_id!r} was aborted with {num_tokens} tokens, but should have {should_have}",
        "got: {got}",
    )
    # what an engine must leave alone (`checks.environment`)
    WORLD = Declared(Promise.P15, thing=str, when=str, changes=LINES).says(
        "the {thing} changed {when}", "*changes"
    )
    CALLERS_LIST = Declared(Promise.P15, change=str).says(
        "generate altered the caller's list: {change}"
    )
    CALLERS_REQUESTS = Declared(Promise.P15).says("the caller's requests were edited")
    # the run itself
    RAISED = Declared(Promise.P1, replay=Replay.CRASH, **THROWN).says(
        "the engine raised {error}: {message}", "*notes", "*frames"
    )
    UNREADABLE = Declared(Promise.P1, replay=Replay.CRASH, **THROWN).says(
        "judging what the engine gave raised {error}: {message}", "*notes", "*frames"
    )
    HANG = Declared(Promise.P10, replay=Replay.HANG, what=str, evidence=LINES, at=FRAME | None).says(
        "{what}", "*evidence"
    )
    DIED = Declared(Promise.P10, what=str, evidence=LINES, at=FRAME | None).says("{what}", "*evidence")
    # what a test or a case is about did not happen
    NEVER_HAPPENED = Declared(Promise.P1, cause=Cause.SCHEDULING, what=str).says(
        "no example of this test shows this in its trace: {what}, which an engine that declares "
        "the capability would show"
    )
    CASE_EVENT = Declared(Promise.P1, cause=Cause.SCHEDULING, what=str, num_steps=int).says(
        "{what} did not happen in {num_steps} steps: this case proves nothing"
    )
    MAX_STEPS = Declared(Promise.P9, num_steps=int, most=int).says(
        "it took {num_steps} steps, but {most} are enough"
    )
    # a user's own test, in its own words: the fact `what`
    STATED = Declared(Promise.P1, what=str).says("{what}")

    def __init__(self, declared: Declared) -> None:
        self.id = self.name.lower().replace("_", "-")
        self.promise = declared.promise
        self.cause = declared.cause
        self.needs = declared.needs
        self.replay = declared.replay
        self.facts = declared.facts
        self.words = declared.words

    def __str__(self) -> str:
        return self.id

    @classmethod
    def by_id(cls, rule_id: str) -> Self:
        """Returns the rule. Raises `KeyError` for an id that no rule has."""
        return {rule.id: rule for rule in cls}[rule_id]

    def own_cause(self, promise: Promise) -> Cause | None:
        """Returns the cause that the rule names without a rerun, if any. A rule that is counted for
        another promise was met by a test of that: reruns look further."""
        is_sure = promise is self.promise and promise in ABOUT_BEHAVIOUR
        return self.cause or (CAUSE_OF_PROMISE[promise] if is_sure else None)

    def likely_cause(self, promise: Promise) -> Cause | None:
        """Returns the cause that goes with the rule or, where two runs were compared, with what differs
        between them."""
        is_compared = self in (Rule.RELATION, Rule.RELATION_LOGITS)
        return CAUSE_OF_PROMISE.get(promise if is_compared else self.promise)

    def require_facts(self, facts: Mapping[str, Any]) -> None:
        """Raises `TypeError` for a fact that the rule does not take, that is missing, or of another
        type than declared."""
        if strange := sorted(facts.keys() - self.facts.keys()):
            raise TypeError(f"the rule {self} takes no fact {strange[0]}: {', '.join(self.facts)}")
        for name, kind in self.facts.items():
            if not _is_of(facts.get(name), kind):
                given = repr(facts[name]) if name in facts else "missing"
                shown = getattr(kind, "__name__", kind) if isinstance(kind, type) else kind
                raise TypeError(f"the fact {name} of the rule {self} is {given}, but must be {shown}")


def _is_of(value: object, kind: Any) -> bool:
    if isinstance(kind, UnionType):
        return any(_is_of(value, each) for each in get_args(kind))
    if get_origin(kind) is tuple:
        return isinstance(value, tuple) and all(_is_of(each, get_args(kind)[0]) for each in value)
    if kind is float:
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return value in NON_FINITE if isinstance(value, str) else is_number
    return value is None if kind is NoneType else isinstance(value, kind)
