"""The text of each rule when it is broken: a headline, and the lines of evidence below it.

Templates are filled with the facts of the finding, its `request_id` and its `step`. A line `*name`
stands for each line of the fact `name`.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from batchproof.findings.finding import Rule

REQUEST = "request {request_id!r}"
GOT_AND_CAP = ("got: {got} ({finish_reason})", "max_new_tokens {cap}, eos {eos}")
BEFORE_AND_AFTER = ("before: {before}", "after:  {after}")
LATE = ", but its last token was sampled in step {sampled_in}"
GRANTED = ("{granted}",)

ANSWERS: dict[Rule, tuple[str, ...]] = {
    Rule.RETURN_TYPE: ("generate returned a {got}, but should return a list of Completions",),
    Rule.COMPLETION_TYPE: (
        "generate returned a {got} that holds a {item}, but should return a list of Completions",
    ),
    Rule.COMPLETION_FIELD: ("the completion of " + REQUEST + " has {got}, but should be {should_be}",),
    Rule.COUNT: ("{num_requests} requests, but {num_completions} completions",),
    Rule.ORDER: ("the completions are not in input order", "*ids"),
    Rule.STRANGER: ("{stranger!r} is answered, which was not requested, and {lost!r} is not", "*ids"),
    Rule.TWICE: ("{twice!r} is answered twice, and {lost!r} is not", "*ids"),
    Rule.MISSING: ("request {lost!r} has no completion", "*ids"),
    Rule.SURPLUS: ("there are too many completions", "*ids"),
    Rule.GOOD_REFUSED: (REQUEST + " is a good request, but was answered with an error: {error}",),
    Rule.ABORTED_UNASKED: (REQUEST + " was aborted without a call of abort",),
    Rule.CAP: (REQUEST + " got {num_tokens} tokens, but its cap is {cap}", *GOT_AND_CAP),
    Rule.SHORT: (
        REQUEST + " got {num_tokens} tokens without an EOS, but should get {cap}",
        *GOT_AND_CAP,
    ),
    Rule.EOS: (REQUEST + " goes on after its EOS {token} at step {step}", *GOT_AND_CAP),
    Rule.FINISH_REASON: (
        REQUEST + " finished with {finish_reason}, but should finish with {should_be}",
        *GOT_AND_CAP,
    ),
    Rule.VOCABULARY: (
        REQUEST
        + " step {step}: got token {token}, which is outside the vocabulary (0 to {last_token}), "
        "but should be {should_be}",
    ),
    Rule.TOKEN: (
        REQUEST + " step {step}: got token {token}, but should be {right_token}",
        "got:       {got}",
        "should be: {should_be}",
        "margin of the right token {margin:.3g}; rounding explains {bound:.2g} (2 kappa E; kappa "
        "{kappa:g})",
    ),
    Rule.CHOICE: (
        REQUEST
        + ": a token is not the best choice after those before it, by more than rounding explains",
        "got: {got}",
        "rounding explains {bound:.2g}",
    ),
    Rule.NEAR_TIES: (
        "{num_near_ties} near-ties in {num_steps} steps; chance allows {budget}",
        "{share:.2%} of the reference's own steps could flip",
    ),
    Rule.LOGITS_MISSING: (
        "the engine has the capability logits, but those of " + REQUEST + " are None although "
        "config.return_logits is set",
    ),
    Rule.LOGITS_SHAPE: (REQUEST + " has logits of shape {got}, but should be {should_be}",),
    Rule.LOGITS_FINITE: (REQUEST + ": its logits hold NaN or infinity",),
    Rule.LOGITS: (
        REQUEST + " step {step}: the logits are off by {off:.3g}, but rounding reaches {bound:.2g}",
        "kappa {kappa:g}, E {unit:.2g}; the tokens are right all the same",
    ),
    Rule.LOGITS_RMS: (
        REQUEST
        + ": the logits are off by {off:.3g} on average (rms), but rounding reaches {bound:.2g}",
    ),
    Rule.PROCESSED: (
        REQUEST + " step {step}: got token {token}, but its parameters make {right_token} the best",
        "got:       {got}",
        "should be: {should_be}",
        "the better token leads by {margin:.3g}; rounding explains {bound:.2g}",
        "{sampling}",
    ),
    Rule.FORBIDDEN: (
        REQUEST + " step {step}: got token {token}, which its parameters exclude",
        "got: {got}",
        "{sampling}",
    ),
    Rule.SEED: (
        "{num_changed} of {num_requests} requests with a seed are answered differently {relation}; "
        "chance allows {budget}",
        "first " + REQUEST + ": before {before}, after {after}",
    ),
    Rule.SEED_IGNORED: (
        "all {num_requests} requests are answered as before with other seeds; "
        + REQUEST
        + ": {before}",
    ),
    Rule.FREQUENCIES: (
        "the tokens drawn do not have their probabilities: G = {statistic:.1f} with {degrees} degrees "
        "of freedom, p = {p_value:.1g}",
        "*cells",
        "{sampling}",
    ),
    Rule.LOGPROBS_MISSING: (
        REQUEST + " asks for logprobs and has {num_tokens} tokens, but {got} of them have some",
    ),
    Rule.PROMPT_LOGPROBS_MISSING: (
        REQUEST + " asks for logprobs of its {num_tokens} prompt tokens: an entry for each, None for "
        "the first alone; got {got}",
    ),
    Rule.LOGPROB: (
        REQUEST + " {where}: the logprob of token {token} is {got:.6g}, but should be "
        "{should_be:.6g}, within {bound:.2g}",
    ),
    Rule.RANK: (REQUEST + " {where}: the rank of token {token} is {got}, but should be {should_be}",),
    Rule.TOP_LOGPROBS: (
        REQUEST + " {where}: of the likeliest tokens {what}",
        "got:       {got}",
        "should be: {should_be}",
    ),
}

REFUSALS_AND_RELATIONS: dict[Rule, tuple[str, ...]] = {
    Rule.REFUSED: (
        "bad " + REQUEST + " was answered with {finish_reason} and {num_tokens} tokens, but should be "
        "refused",
        "max_new_tokens {cap}, {num_prompt_tokens} prompt tokens",
    ),
    Rule.REFUSAL_WORDS: (
        "bad " + REQUEST + " was refused with {error!r}, which names neither a value at fault nor a "
        "limit that it breaks",
        "*others",
    ),
    Rule.LIVE_ID: ("add of the live id {request_id!r} {what}",),
    Rule.RELATION: (REQUEST + " is answered differently {relation}", *BEFORE_AND_AFTER),
    Rule.RELATION_LOGITS: (
        REQUEST + " step {step}: its logits moved by {moved:.3g} {relation}",
        "allowed: {allowed:.2g} (0: all shapes are the same)",
        "tokens before {before}, after {after}",
    ),
    Rule.RETURNED: (REQUEST + ": the logits that were returned have changed after a later call",),
    Rule.REPEATS: ("the same call was answered differently", "first: {first}", "then:  {then}"),
    Rule.INVARIANCE: (
        "the grade along {axis} is {got}, but the engine declares {declared}: {what}",
        REQUEST + ": its logits move by {worst} E, and {num_tokens} of its tokens stay",
        *BEFORE_AND_AFTER,
    ),
    Rule.MASK_SHAPE: ("the mask is {got}, but should be {should_be}",),
    Rule.MASK: (
        "{first}, and {num_others} more bits differ from the definition",
        "rows (cached, fed): {layout}; window {window}",
    ),
    Rule.UNSEEN_MOVES: ("query {query} moved by {moved:.3g}, but cannot see position {position}",),
    Rule.SEEN_STAYS: ("query {query} did not move, but must see position {position}",),
}
REFUSALS_AND_RELATIONS[Rule.MASK_LEAK] = REFUSALS_AND_RELATIONS[Rule.MASK]

TRACE: dict[Rule, tuple[str, ...]] = {
    Rule.TRACE_TYPE: ("trace is {got}, but should be a sequence of StepRecords that hold RowRecords",),
    Rule.NAMES: ("step {step}: the trace names {name!r}, which was not requested",),
    Rule.POSITIONS: (
        "step {step}, "
        + REQUEST
        + ": context_len is {context_len}, but {num_fed} tokens were fed before",
    ),
    Rule.QUERY_LEN: (
        "step {step}, " + REQUEST + ": query_len is {query_len}, but {num_due} tokens were due",
    ),
    Rule.SAMPLED: (
        "step {step}, " + REQUEST + ": is_sampled is {is_sampled}, but {num_fed} of {num_known} tokens "
        "are fed",
    ),
    Rule.DRAFTS: (
        "step {step}, "
        + REQUEST
        + ": num_drafted is {num_drafted} and num_accepted {num_accepted}, but "
        "this row may have at most {most} drafts, and accept no more than it has",
    ),
    Rule.PREFIX: (
        "step {step}, " + REQUEST + ": it begins behind {num_tokens} tokens that were never computed",
    ),
    Rule.TWO_ROWS: ("step {step}: a request has two rows: {ids}",),
    Rule.QUEUES: ("step {step}: {request_id!r} {what}",),
    Rule.SLOTS: ("step {step}: {num_rows} rows, but max_num_seqs is {max_num_seqs}",),
    Rule.TOKEN_BUDGET: (
        "step {step}: {num_fed} tokens were fed, but max_num_batched_tokens is "
        "{max_num_batched_tokens}",
    ),
    Rule.FIRST_COME: ("step {step}: {request_id!r} was admitted before {waiting!r}, which came first",),
    Rule.ARRIVAL_ORDER: (
        "step {step}: requests were admitted out of the order of arrival",
        "got:       {got}",
        "should be: {should_be}",
    ),
    Rule.DECODES: ("step {step}: running " + REQUEST + " got no token", "rows: {rows}"),
    Rule.REFILL: (
        "step {step}: {num_running} of {max_num_seqs} slots are used, but {request_id!r} waits",
        "running: {running}",
        "tokens left in the step: {room}",
    ),
    Rule.LATE_FINISH: ("step {step}: " + REQUEST + " finishes" + LATE, *GRANTED),
    Rule.LATE_ADMISSION: ("step {step}: " + REQUEST + " is admitted" + LATE, *GRANTED),
    Rule.LATE_ROWS: ("step {step}: {num_tokens} tokens of " + REQUEST + " are fed" + LATE, *GRANTED),
    Rule.LATE_SLOTS: (
        "step {step}: {num_running} requests hold {num_slots} slots",
        "running: {running}",
    ),
    Rule.STEP_BOUND: ("{num_steps} steps for a workload of at most {bound}",),
    Rule.IDLE_STEP: ("step {step} fed nothing",),
    Rule.FINISHED_ONCE: (REQUEST + " finished {num_times} times",),
    Rule.POOL: ("step {step}: {num_free} blocks of {num_total} are free",),
    Rule.ACCOUNTING: (
        "step {step}: {num_used} blocks are used, but those running can own {least} to {most}",
        "running: {running}",
        "free {num_free} of {num_total}, block_size {block_size}",
    ),
    Rule.LEFTOVER_BLOCKS: ("at the end {num_free} of {num_total} blocks are free, not all",),
    Rule.NUM_SAMPLED: (
        REQUEST + " was sampled {num_sampled} times, but has {num_tokens} tokens",
        "surplus rows that may be discarded: {num_surplus}",
    ),
}

EVENTS: dict[Rule, tuple[str, ...]] = {
    Rule.STEP_TYPE: ("step returned a {got}, but should return a list of TokenEvents",),
    Rule.EVENT_TYPE: ("step returned a {got}, but should return TokenEvents",),
    Rule.EVENT_FIELD: ("an event of " + REQUEST + " has {got}, but should be {should_be}",),
    Rule.LAST_EVENT: (
        REQUEST + ": its last event, and no other, must carry the finish reason",
        "finish reasons: {reasons}",
    ),
    Rule.EMPTY_EVENT: (REQUEST + ": an event carries no token",),
    Rule.NUM_EVENTS: (REQUEST + ": {num_events} events, but its cap is {cap}",),
    Rule.STRANGE_EVENT: ("an event is of " + REQUEST + ", which was not requested",),
    Rule.REFUSAL_EVENT: ("a refused request must yield one ERROR event with a message, got {got}",),
    Rule.CANCELLED_TOKEN: (
        REQUEST + " was cancelled before step {cancelled_at}, but got a token in step {step}",
    ),
    Rule.CANCELLED_ANSWER: (
        "cancelled " + REQUEST + " had wrong tokens",
        "got:       {got}",
        "should be: {should_be}",
    ),
    Rule.CANCELLED_FED: (
        REQUEST
        + " was cancelled before step {cancelled_at}, when the trace had {num_records} records, "
        "but record {record} still feeds it",
    ),
    Rule.CANCELLED_ROW: ("a cancelled request is still being fed",),
    Rule.CANCELLED_BLOCKS: (
        "{num_free} of {num_total} blocks are free at the end: a cancelled request still holds some",
    ),
    Rule.FREED_TWICE: ("{num_free} of {num_total} blocks are free at the end: some were freed twice",),
    Rule.NOT_ABORTED: (REQUEST + " ended with {finish_reason}, but should be aborted",),
    Rule.ABORTED_LENGTH: (
        REQUEST + " was aborted with {num_tokens} tokens, but should have {should_have}",
        "got: {got}",
    ),
}

RUNS: dict[Rule, tuple[str, ...]] = {
    Rule.WORLD: ("the {thing} changed {when}", "*changes"),
    Rule.CALLERS_LIST: (
        "generate altered the caller's list: it held {num_before} requests, now {num_after}",
    ),
    Rule.CALLERS_REQUESTS: ("the caller's requests were edited",),
    Rule.RAISED: ("the engine raised {error}: {message}", "*frames"),
    Rule.UNREADABLE: ("judging what the engine gave raised {error}: {message}", "*frames"),
    Rule.HANG: ("{what}", "*evidence"),
    Rule.DIED: ("{what}", "*evidence"),
    Rule.NEVER_HAPPENED: (
        "no example of this test shows this in its trace: {what}, which an engine that declares the "
        "capability would show",
    ),
    Rule.CASE_EVENT: ("{what} did not happen in {num_steps} steps: this case proves nothing",),
    Rule.MAX_STEPS: ("it took {num_steps} steps, but {most} are enough",),
    Rule.STATED: ("{what}",),
}

TEMPLATES: Mapping[Rule, tuple[str, ...]] = MappingProxyType(
    ANSWERS | REFUSALS_AND_RELATIONS | TRACE | EVENTS | RUNS
)
