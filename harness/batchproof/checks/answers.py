"""Decides whether a completion is the right answer to its request.

Rules O0-O4, strictest first; the relations (O5) are in `batchproof.run.relations`, the frequencies of
drawn tokens in `checks.draws`.

    structure  lengths, ids, finish reasons: always exact                   (P2, P3, P4, P12)
    O1         a constructed model: tokens equal its integer oracle         (P1, any dtype)
    O2         tokens equal per-prompt generation, which is spared where    (P1)
               float64 leaves no doubt of what it would give
    O3         if they differ: regret in float64 within 2 kappa E at every  (P1, a near-tie)
               step, and no more such steps than chance allows
    O4         logits within kappa E of float64, where the engine has them  (P1)

docs/near_ties.md derives the bound of O3. Nothing is retried and nothing is skipped.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet

import torch
from torch import Tensor

from batchproof.api import Capability, Completion, FinishReason, Request
from batchproof.checks.logprobs import after_first, logprob_findings
from batchproof.findings.finding import Facts, Finding, Rule, found
from batchproof.oracle import choosing
from batchproof.oracle.oracle import Oracle, centred, margins
from batchproof.records.trial_record import Ledger
from batchproof.requirements.promises import Promise
from batchproof.statistics import binomial_bound
from batchproof.workload.workloads import Workload

NEAR_TIE_RISK = 1e-6  # chance at which an honest engine would exceed its near-tie budget


def completion_findings(
    requests: Sequence[Request], completions: Sequence[Completion], oracle: Oracle, ledger: Ledger
) -> Iterator[Finding]:
    """Yields what is wrong with the answers to good requests, and counts them in the ledger.

    Where the model gives NaN, any answer will do. Answers that do not belong to the requests are not
    judged. Raises `OracleError` if there is no right one.
    """
    disorder = [*order_findings(requests, completions)]
    yield from disorder
    if disorder:
        return
    pairs = [
        (request, completion)
        for request, completion in zip(requests, completions, strict=True)
        if oracle.subject.has_answer(request.prompt_token_ids)
    ]
    _score_together(pairs, oracle)
    for request, completion in pairs:
        yield from structure_findings(request, completion)
        if completion.finish_reason in (FinishReason.ERROR, FinishReason.ABORTED):
            continue
        own = oracle.of(request)
        yield from token_findings(request, completion, own, ledger)
        if not are_known(completion.token_ids, own):
            continue  # float64 has no logits behind a token that is none
        yield from logit_findings(request, completion, own)
        yield from logprob_findings(request, completion, own)
        ledger.num_logits += completion.logits is not None
        ledger.num_requests += 1
        ledger.num_steps += len(completion.token_ids)
    yield from near_tie_findings(oracle, ledger)
    ledger.num_workloads += 1
    if oracle.is_calibrated:
        ledger.error_unit = oracle.error.max_abs


def _score_together(pairs: Sequence[tuple[Request, Completion]], oracle: Oracle) -> None:
    """Scores the whole batch in one float64 pass for each adapter; the oracle keeps the results."""
    for adapter in {request.adapter for request, _ in pairs}:
        alike = [pair for pair in pairs if pair[0].adapter == adapter]
        _score_alike(alike, oracle.of(alike[0][0]))


def _score_alike(pairs: Sequence[tuple[Request, Completion]], oracle: Oracle) -> None:
    answers = [
        (request.prompt_token_ids, tuple(completion.token_ids))
        for request, completion in pairs
        if (completion.logits is not None or oracle.is_best_scored(request, len(completion.token_ids)))
        and completion.token_ids
        and len(completion.token_ids) <= request.max_new_tokens
        and are_known(completion.token_ids, oracle)
    ]
    prompts = [
        after_first(request.prompt_token_ids)
        for request, completion in pairs
        if completion.prompt_logprobs is not None and len(request.prompt_token_ids) > 1
    ]
    oracle.score_all([*answers, *prompts])


def order_findings(requests: Sequence[Request], completions: Sequence[Completion]) -> Iterator[Finding]:
    """Yields breaks of P4: there is one completion per request, in input order."""
    got = [completion.request_id for completion in completions]
    expected = [request.request_id for request in requests]
    if got == expected:
        return
    ids: Facts = {"ids": [f"got:       {got}", f"should be: {expected}"]}
    lost = list((Counter(expected) - Counter(got)).elements())
    extra = list((Counter(got) - Counter(expected)).elements())
    strangers = [each for each in extra if each not in expected]
    doubled = [each for each in extra if each in expected]
    if lost and strangers:
        yield found(Rule.STRANGER, stranger=strangers[0], lost=lost[0], **ids)
    if lost and len(got) != len(expected):
        yield found(Rule.MISSING, lost=lost[0], **ids)
    if lost and doubled:
        yield found(Rule.TWICE, twice=doubled[0], lost=lost[0], **ids)
    if len(got) > len(expected):
        yield found(Rule.SURPLUS, **ids)
    if not lost and not extra:
        yield found(Rule.ORDER, **ids)


def structure_findings(request: Request, completion: Completion) -> Iterator[Finding]:
    """Yields what is wrong with length, EOS and finish reason, which rounding cannot change."""
    name, tokens, cap = request.request_id, completion.token_ids, request.max_new_tokens
    if completion.finish_reason is FinishReason.ERROR:
        error = completion.error
        yield found(Rule.GOOD_REFUSED, name, error=None if error is None else str(error))
        return
    if completion.finish_reason is FinishReason.ABORTED:
        yield found(Rule.ABORTED_UNASKED, name)
        return
    facts: Facts = {
        "got": tokens,
        "num_tokens": len(tokens),
        "finish_reason": completion.finish_reason.value,
        "cap": cap,
        "eos": sorted(request.eos_token_ids),
    }
    if len(tokens) > cap:
        yield found(Rule.CAP, name, cap, **facts)
    end = choosing.num_until_end(request, tokens)
    if end is not None and end < len(tokens):
        yield found(Rule.EOS, name, end - 1, token=tokens[end - 1], **facts)
    if end is None and len(tokens) < cap:
        yield found(Rule.SHORT, name, len(tokens), **facts)
    expected = FinishReason.LENGTH if end is None else FinishReason.STOP
    if completion.finish_reason != expected:
        yield found(Rule.FINISH_REASON, name, should_be=expected.value, **facts)


def token_findings(
    request: Request, completion: Completion, oracle: Oracle, ledger: Ledger
) -> Iterator[Finding]:
    """Yields the first wrong token by rules O1 to O3, and counts near-ties in the ledger. Tokens beyond
    the cap are not judged, those with parameters of their own by P19, and those with a grammar by P22.
    Raises `OracleError` if there is no right answer."""
    prompt, tokens = request.prompt_token_ids, tuple(completion.token_ids)
    if not tokens:
        return
    if are_known(tokens, oracle) and not choosing.is_plain(request):
        yield from chosen_findings(request, tokens, oracle)
        return
    should_be = list(oracle.right_tokens(prompt, min(len(tokens), request.max_new_tokens), tokens))
    for step, (token_id, right) in enumerate(zip(tokens, should_be, strict=False)):
        if token_id == right:
            continue
        if not 0 <= token_id < oracle.subject.vocab_size:
            last = oracle.subject.vocab_size - 1
            facts: Facts = {"token": token_id, "last_token": last, "should_be": right}
            yield found(Rule.VOCABULARY, request.request_id, step, **facts)
            return
        if oracle.subject.oracle is None:
            num_near_ties = _explained_steps(prompt, tokens, oracle)
            if num_near_ties is not None:
                ledger.num_near_ties += num_near_ties
                return
        yield found(
            Rule.TOKEN,
            request.request_id,
            step,
            token=token_id,
            right_token=right,
            got=tokens,
            should_be=should_be[: len(tokens)],
            margin=float(margins(oracle.score(prompt, tuple(should_be)))[step]),
            bound=2 * oracle.logit_bound,
            kappa=oracle.kappa,
        )
        return


def are_known(tokens: Sequence[int], oracle: Oracle) -> bool:
    return all(0 <= token < oracle.subject.vocab_size for token in tokens)


def choice_findings(
    request: Request, completion: Completion, oracle: Oracle, ledger: Ledger
) -> Iterator[Finding]:
    """Yields a break of rule O3 alone, for answers too long to be generated again. Each token, given
    the engine's own tokens before it, must be within rounding of the best in float64."""
    prompt, tokens = request.prompt_token_ids, completion.token_ids
    num_near_ties = _explained_steps(prompt, tokens, oracle, is_flipped=False)
    if num_near_ties is None:
        bound = 2 * oracle.logit_bound
        yield found(Rule.CHOICE, request.request_id, got=tokens, bound=bound)
    else:
        ledger.num_near_ties += num_near_ties


def _explained_steps(
    prompt: tuple[int, ...], tokens: tuple[int, ...], oracle: Oracle, is_flipped: bool = True
) -> int | None:
    """Returns the number of proven near-ties in the answer (rule O3); None if rounding does not explain
    it. `is_flipped`: the answer is known to differ from the reference, so at least one is counted."""
    if not are_known(tokens, oracle):
        return None  # a later token is outside the vocabulary; the first wrong one is reported
    exact = oracle.score(prompt, tokens)
    regret = exact.max(dim=-1).values - of_each(exact, tokens)
    if not regret.max().item() <= 2 * oracle.logit_bound:  # `not`: a NaN must fail
        return None
    return max(int(is_flipped), int((regret > 0).sum()))


def near_tie_findings(oracle: Oracle, ledger: Ledger) -> Iterator[Finding]:
    """Yields a break of the second half of rule O3: an honest engine flips only some of the steps that
    could flip."""
    if not ledger.num_near_ties:
        return
    budget = binomial_bound(ledger.num_steps, oracle.error.near_tie_share, NEAR_TIE_RISK)
    if ledger.num_near_ties > budget:
        yield found(
            Rule.NEAR_TIES,
            num_near_ties=ledger.num_near_ties,
            num_steps=ledger.num_steps,
            budget=budget,
            share=oracle.error.near_tie_share,
        )


def logit_findings(request: Request, completion: Completion, oracle: Oracle) -> Iterator[Finding]:
    """Yields breaks of rule O4: logits are within kappa E of float64 over the engine's own tokens.

    The largest error is compared with that of the reference, and the rms error with its rms. Logits of
    another shape than `(num_tokens, vocab)` break it too, and NaN or infinity.
    """
    if completion.logits is None:
        return
    name, shape = request.request_id, tuple(completion.logits.shape)
    expected_shape = (len(completion.token_ids), oracle.subject.vocab_size)
    if shape != expected_shape:
        yield found(Rule.LOGITS_SHAPE, name, got=str(shape), should_be=str(expected_shape))
        return
    if not bool(torch.isfinite(completion.logits).all()):
        yield found(Rule.LOGITS_FINITE, name)
        return
    exact = oracle.score(request.prompt_token_ids, completion.token_ids)
    difference = centred(completion.logits) - centred(exact)
    worst, rms = difference.abs().amax(dim=-1), difference.pow(2).mean().sqrt().item()
    kappa, step = oracle.kappa, int(worst.argmax())
    off = float(worst[step])
    for error in oracle.errors(request.prompt_token_ids, tuple(completion.token_ids)):
        if off <= kappa * error.max_abs and rms <= kappa * error.rms:
            return  # and so within kappa of each larger E, which need not be measured then
    if not off <= kappa * error.max_abs:  # `not`: a NaN must fail
        facts: Facts = {"bound": kappa * error.max_abs, "kappa": kappa, "unit": error.max_abs}
        yield found(Rule.LOGITS, name, step, off=off, **facts)
    else:
        yield found(Rule.LOGITS_RMS, name, off=rms, bound=kappa * error.rms)


Tokens = tuple[int, ...]


def chosen_findings(request: Request, tokens: Tokens, oracle: Oracle) -> Iterator[Finding]:
    """Yields the first token that the request's grammar or parameters exclude, and the first wrong
    greedy choice from the logits that they make."""
    name, asked, grammar = request.request_id, choosing.sampling_of(request), request.grammar
    exact = choosing.processed(oracle.score(request.prompt_token_ids, tokens), request, tokens)
    is_left = choosing.kept(exact, asked) if asked.draws else exact > -torch.inf
    if asked.draws and not bool(of_each(is_left, tokens).all()):  # unless rounding explains it
        is_left = choosing.kept(exact, asked, slack(request, oracle))
    is_allowed = of_each(is_left, tokens)
    facts: Facts = {"got": tokens}
    facts |= {"sampling": str(asked)} if grammar is None else {"grammar": str(grammar)}
    if not bool(is_allowed.all()):
        step = int((~is_allowed).nonzero()[0])
        if grammar is None:
            yield found(Rule.FORBIDDEN, name, step, token=tokens[step], **facts)
        else:
            allowed = tuple(is_left[step].nonzero()[:, 0].tolist())
            eos = tuple(sorted(request.eos_token_ids))
            yield found(
                Rule.UNGRAMMATICAL, name, step, token=tokens[step], allowed=allowed, eos=eos, **facts
            )
    best = exact.max(dim=-1)
    regret = best.values - of_each(exact, tokens)
    if asked.draws or bool((regret <= 0).all()):  # then nobody need measure how much rounding explains
        return
    bound = 2 * slack(request, oracle)
    is_wrong = is_allowed & ~(regret <= bound)  # `~`: a NaN must fail
    if bool(is_wrong.any()):
        step = int(is_wrong.nonzero()[0])
        yield found(
            Rule.PROCESSED if grammar is None else Rule.GRAMMATICAL_CHOICE,
            name,
            step,
            token=tokens[step],
            right_token=int(best.indices[step]),
            should_be=oracle.choices(request)[: len(tokens)],
            margin=float(regret[step]),
            bound=bound,
            **facts,
        )


def of_each(values: Tensor, tokens: Tokens) -> Tensor:
    """Returns each token's own value in its row, `(len(tokens),)`."""
    return values.gather(-1, torch.tensor(tokens)[:, None])[:, 0]


def slack(request: Request, oracle: Oracle) -> float:
    """Returns by how much rounding may move a processed logit."""
    return choosing.amplification(choosing.sampling_of(request)) * oracle.logit_bound


def presence_findings(
    workload: Workload,
    completions: Sequence[Completion],
    capabilities: AbstractSet[Capability],
    promise: Promise,
) -> Iterator[Finding]:
    """Yields what is missing where an engine with the capability is asked for logits, or for logprobs
    of a prompt, and a completion has none. Events have neither."""
    if workload.needs_stepping:
        return
    wants_logits = workload.config.return_logits and Capability.LOGITS in capabilities
    for request, completion in zip(workload.requests, completions, strict=False):
        name = completion.request_id
        if not completion.token_ids:  # refused: another rule judges that
            continue
        if wants_logits and completion.logits is None:
            yield found(Rule.LOGITS_MISSING, name, promise=promise)
        wants_prompt = choosing.sampling_of(request).prompt_logprobs is not None
        wants_prompt = wants_prompt and Capability.PROMPT_LOGPROBS in capabilities
        if wants_prompt and completion.prompt_logprobs is None:
            num_tokens = len(request.prompt_token_ids)
            yield found(Rule.PROMPT_LOGPROBS_MISSING, name, num_tokens=num_tokens, got="none at all")
