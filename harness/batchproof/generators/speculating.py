"""Hypothesis strategies: workloads whose answers an engine may reach by speculation."""

from dataclasses import replace

from hypothesis import strategies as st

from batchproof.api import EngineConfig, Request
from batchproof.decoding.speculation import disagreeing_tokens, proposed_instead
from batchproof.generators.strategies import text_tokens
from batchproof.generators.target import Target
from batchproof.oracle.oracle import Oracle
from batchproof.workload.workloads import Workload

MOST_DRAFTS = 7
LEAST_CAP = 3  # of an answer that has a draft for certain: between a token of the prompt and the last
AGREEMENTS = (0.25, 0.5, 0.75, 0.9)
OWN_TEXT = 13


@st.composite
def speculated(draw: st.DrawFn, workload: Workload, agreement: float) -> Workload:
    """Draws the workload with a draft model that is right in this share of the tokens."""
    num = draw(st.integers(1, MOST_DRAFTS), label="num_speculative_tokens")
    budget = max(2, workload.config.max_num_batched_tokens)  # a single token has no room for a draft
    # Which are right is not asked where a whole run of drafts passes the end of the context.
    longest = None if agreement == 1.0 else workload.config.max_model_len
    return workload.with_config(
        max_num_batched_tokens=budget,
        max_model_len=longest,
        num_speculative_tokens=num,
        draft_agreement=agreement,
    )


def one_alone(oracle: Oracle, workload: Workload, is_right: bool) -> Workload:
    """Returns a call for the engine of the workload to serve behind it: one request, alone, whose first
    draft is right or is wrong. So a test of drafts meets one, whatever was drawn.

    It goes on where an answer of the workload is about to meet such a draft, and needs no more room
    than that. The workload has a draft model, and a request that may have `LEAST_CAP` tokens.
    """
    agreement = workload.config.draft_agreement
    assert agreement is not None, "n-grams are right where the prompts repeat themselves"
    wrong = disagreeing_tokens(oracle.subject.vocab_size, agreement)
    behind = (
        (*request.prompt_token_ids, *said[: place - 1])
        for request in workload.requests
        for said in [oracle.right_tokens(request.prompt_token_ids, request.max_new_tokens)]
        for place in range(1, len(said) - 1)
        if (said[place] not in wrong) == is_right
    )
    return Workload((Request("alone", next(behind), LEAST_CAP),), workload.config)


@st.composite
def behind_rejected_drafts(draw: st.DrawFn, target: Target) -> tuple[Workload, Workload]:
    """Draws two calls for one engine whose drafts are never right.

    In the first a request ends at an EOS that takes the place of a draft and would fill a block, which
    holds the draft's key. In the second, prompts go on behind these answers, and others with a draft of
    an earlier block, in which a token has taken its place. The first prompt fills a block, so that one
    is found for certain.
    """
    oracle, vocab_size = target.oracle, target.subject.vocab_size
    block_size = draw(st.sampled_from(target.block_sizes), label="block_size")
    owners, behind = list[Request](), list[Request]()
    for place, text in enumerate(draw(st.permutations(range(12)))[:3]):
        least = 0 if place else block_size
        prompt = text_tokens(text, vocab_size)[: least + draw(st.integers(2, 9))]
        said = oracle.right_tokens(prompt, 3 * block_size + 1)
        full = [at for at in range(1, len(said)) if (len(prompt) + at + 1) % block_size == 0]
        end = next((at for at in full[::-1] if said[at] not in said[:at]), len(said) - 1)
        owners.append(Request(f"r{place}", prompt, len(said), frozenset({said[end]})))
        drafted = proposed_instead(said[full[0]], vocab_size, 0.0)
        for name, at, token in (("goes-on", end, said[end]), ("drafted", full[0], drafted)):
            longer = (*prompt, *said[:at], token, *text_tokens(text + 1, vocab_size)[:1])
            behind.append(Request(f"{name}-{place}", longer, 3))
    config = EngineConfig(block_size=block_size, prefix_caching=True)
    first = draw(speculated(Workload(tuple(owners), config), 0.0))
    return first, first.with_requests(behind)


@st.composite
def ending_on_a_draft(draw: st.DrawFn, oracle: Oracle, workload: Workload) -> Workload:
    """Draws the workload with a draft model that is never right, and requests whose EOS it proposes in
    place of one of their right tokens."""
    vocab_size = oracle.subject.vocab_size
    ending = []
    for request in workload.requests:
        said = oracle.right_tokens(request.prompt_token_ids, request.max_new_tokens)
        wrong = proposed_instead(draw(st.sampled_from(said)), vocab_size, 0.0)
        ending.append(replace(request, eos_token_ids=frozenset({wrong} - {*said})))
    return draw(speculated(workload.with_requests(ending), 0.0))


@st.composite
def foretold(draw: st.DrawFn, oracle: Oracle) -> Workload:
    """Draws prompts that hold a beginning of their own answers, so that n-grams find drafts of which
    some are right, and, in the first, some wrong.

    A prompt is the last tokens of a text and what the model says behind the text, up to a slip, then
    the text itself. The drafts are right on a model that reads the last tokens only.
    """
    vocab_size = oracle.subject.vocab_size
    num = draw(st.integers(1, MOST_DRAFTS), label="most drafts")
    config = EngineConfig(num_speculative_tokens=num)
    # The token behind so many right drafts is the model's own choice, and has no draft that could slip.
    drafted = [place for place in range(2, 7) if place % (num + 1)]
    wanted: list[Request] = []
    for place in range(draw(st.integers(1, 3), label="requests")):
        text = text_tokens(OWN_TEXT + place, vocab_size)[:64]
        answer = oracle.right_tokens(text, 8)
        right = draw(st.integers(2, 8) if wanted else st.sampled_from(drafted), label="right drafts")
        slip = (answer[right] + 1) % vocab_size if right < len(answer) else 0
        wanted.append(Request(f"r{place}", (*text[-3:], *answer[:right], slip, *text), 8))
    return Workload(tuple(wanted), config)
