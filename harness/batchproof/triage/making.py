"""How a probe pack is made from the weights: prompts are drawn and answered greedily, the tokens are
ranked in float64, and those prompts are kept that tell most.

    draw -> answer (reference) -> rank (float64) -> choose (by what each tells) -> configurations

Prompts are drawn from a seed, so that nobody who has not the seed knows them; from the model itself
where tokens have words, so that they look like what users send.
"""

import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from operator import attrgetter
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from batchproof.api import Request, SamplingParams
from batchproof.errors import UsageError
from batchproof.models.catalogue import ModelUnderTest
from batchproof.oracle.choosing import processed
from batchproof.oracle.oracle import Oracle, Prompt
from batchproof.records.probe_packs import SAME, PrecisionNoise, Probe, ProbePack, Step
from batchproof.records.provenance import made_now
from batchproof.triage.hypotheses import HONEST_SCALE, noisy
from batchproof.triage.noise import ranked
from batchproof.triage.texts import Feed, Texts
from batchproof.validation.values import at_least

LENGTHS = (12, 33, 64, 130)  # tokens of prompts
CAP = 16  # tokens of an answer
ROUND = 8  # candidates that are ranked in one pass
LAST_TOKENS = (8, 16, 32, 64)  # of a prompt that is cut
REPETITION_PENALTIES = (1.05, 1.1, 1.2, 1.3)
SPECIAL_TOKENS = 3  # from 0 on, besides those that the model names


Configured = Callable[[Probe], Request]


def candidates(oracle: Oracle, texts: Texts, seed: int, start: int) -> list[Probe]:
    """Returns the candidates `start` and following, `ROUND` of them at most, in units of a logit: a
    prompt that its text does not name, or that has no answer, is left out."""
    subject, rng = oracle.subject, random.Random(f"{seed} {start}")
    lengths = [each for each in LENGTHS if each + CAP <= subject.context_len]
    at_least(f"the context of {subject.name}", subject.context_len, min(LENGTHS) + CAP)
    length = lengths[start // ROUND % len(lengths)]
    drawn = texts.drawn(subject, rng, length, ROUND)
    paths = _paths(subject, [prompt for prompt, _ in drawn])
    scores = oracle.score_all([(prompt, paths[prompt]) for prompt, _ in drawn])
    found = []
    for (prompt, text), logits in zip(drawn, scores, strict=True):
        steps = tuple(_steps(paths[prompt], logits))
        if texts.are_used:
            steps = texts.with_texts(prompt, steps)
        if steps:
            found.append(Probe(prompt, steps, text))
    return found


@torch.inference_mode()
def _paths(subject: ModelUnderTest, prompts: Sequence[Prompt]) -> Mapping[Prompt, tuple[int, ...]]:
    """Returns a greedy answer to each prompt, in batches of one length. It only proposes tokens, which
    are then ranked in float64."""
    found: dict[Prompt, tuple[int, ...]] = {}
    for length in {len(each) for each in prompts}:
        rows = [each for each in prompts if len(each) == length]
        ids = torch.tensor(rows, device=subject.model.device)
        answers = subject.model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=CAP,
            do_sample=False,
            pad_token_id=0,
        )
        found |= zip(rows, map(tuple, answers[:, length:].tolist()), strict=True)
    return found


def _steps(tokens: Sequence[int], logits: Tensor) -> Iterator[Step]:
    """Yields the steps before the first at which the reference does not take the best token: there, an
    engine with its arithmetic would not either, however wide the margin."""
    for token, step in zip(tokens, ranked(logits), strict=True):
        if step.tokens[0] != token:
            return
        yield step


def chosen(
    found: Sequence[Probe], unit: float, precisions: Sequence[PrecisionNoise], num: int
) -> tuple[Probe, ...]:
    """Returns the probes that tell most: a half those with the widest margins, which no rounding
    crosses, and a half in turn for each precision by the divergence from honest noise."""
    probes = [replace(each, steps=tuple(_in_sigma(s, unit) for s in each.steps)) for each in found]

    def wide(probe: Probe) -> float:
        return fmean(math.log(noisy(step, HONEST_SCALE)[0]) for step in probe.steps)

    orders = [sorted(probes, key=partial(telling, precision=each), reverse=True) for each in precisions]
    orders = orders or [probes]
    near: dict[Prompt, Probe] = {}
    for place in range(len(probes)):
        for order in orders:
            if len(near) < num // 2:
                near.setdefault(order[place].prompt, order[place])
    rest = sorted((each for each in probes if each.prompt not in near), key=wide, reverse=True)
    return (*near.values(), *rest[: num - len(near)])


def _in_sigma(step: Step, unit: float) -> Step:
    return replace(step, behind=tuple(float(f"{each / unit:.4g}") for each in step.behind))


def telling(probe: Probe, precision: PrecisionNoise) -> float:
    """Returns the divergence (Kullback and Leibler, nats) of a precision's answers from honest ones."""
    scale, honest = math.hypot(precision.scale, HONEST_SCALE), HONEST_SCALE
    total, reached = 0.0, 1.0
    for number, step in enumerate(probe.steps):
        usual = noisy(step, honest)
        coarse = noisy(step, scale) if number >= precision.from_step else usual
        total += reached * sum(c * math.log(c / u) for c, u in zip(coarse, usual, strict=True))
        reached *= coarse[0]
    return total


def configured(
    oracle: Oracle,
    texts: Texts,
    probes: Sequence[Probe],
    unit: float,
    on_probes: Callable[[int], object],
) -> tuple[tuple[str, ...], tuple[Probe, ...]]:
    """Returns the names of the configurations, and the probes with what each of them changes."""
    known = configurations(oracle.subject, texts)
    changed: list[Probe] = []
    for start in range(0, len(probes), ROUND):
        some = probes[start : start + ROUND]
        changed += _with_answers(oracle, some, [*known.values()], unit)
        on_probes(len(some))
    if texts.are_used:
        changed = [
            replace(each, steps=texts.with_all_texts(each.prompt, each.steps)) for each in changed
        ]
    return tuple(known), tuple(changed)


def _with_answers(
    oracle: Oracle, probes: Sequence[Probe], asked: Sequence[Configured], unit: float
) -> list[Probe]:
    """Returns the probes with the first token that each configuration changes of their answers."""
    paths = [tuple(step.tokens[0] for step in each.steps) for each in probes]

    def scores(requests: Sequence[Request]) -> list[Tensor]:
        prompts = (each.prompt_token_ids for each in requests)
        return oracle.score_all([*zip(prompts, paths, strict=True)])

    usual = scores([as_asked(each) for each in probes])
    found = list(probes)
    for change in asked:
        requests = [change(each) for each in probes]
        for place, logits in enumerate(scores(requests)):
            best = processed(logits, requests[place], paths[place]).argmax(-1).tolist()
            found[place] = _answering(found[place], best, usual[place], unit)
    return found


def _answering(probe: Probe, best: Sequence[int], usual: Tensor, unit: float) -> Probe:
    """Returns the probe with one more configuration, whose best tokens these are. `usual` are the
    logits without it."""
    number = next((i for i, s in enumerate(probe.steps) if best[i] != s.tokens[0]), None)
    if number is None:
        return replace(probe, under=(*probe.under, SAME))
    steps, token = list(probe.steps), best[number]
    step = steps[number]
    if token not in step.tokens:
        behind = float(usual[number].max() - usual[number, token]) / unit
        step = replace(step, tokens=(*step.tokens, token), behind=(*step.behind, behind))
        steps[number] = step
    under = (*probe.under, (number, step.tokens.index(token)))
    return replace(probe, steps=tuple(steps), under=under)


def configurations(subject: ModelUnderTest, texts: Texts) -> Mapping[str, Configured]:
    """Returns settings that an engine may have beside what it is asked, by name, each as the request
    that its answers to a probe are right answers to."""
    found: dict[str, Configured] = {}
    for token in _special_tokens(subject):
        name = f"token {token} stands before each prompt (BOS)"
        found[name] = partial(as_asked, feed=partial(_behind, token))
    for length in LAST_TOKENS:
        name = f"only the last {length} tokens of a prompt are read"
        found[name] = partial(as_asked, feed=partial(_last, length))
    for name, feed in texts.configurations(subject):
        found[name] = partial(as_asked, feed=feed)
    for penalty in REPETITION_PENALTIES:
        asked = SamplingParams(repetition_penalty=penalty)
        found[f"repetition_penalty {penalty:g} by default"] = partial(as_asked, sampling=asked)
    return found


def as_asked(
    probe: Probe, feed: Feed = attrgetter("prompt"), sampling: SamplingParams | None = None
) -> Request:
    """Returns the request for the answer to a probe, whose prompt may be fed otherwise."""
    return Request("", feed(probe), len(probe.steps), sampling=sampling)


def _behind(token: int, probe: Probe) -> Prompt:
    return (token, *probe.prompt)


def _last(length: int, probe: Probe) -> Prompt:
    return probe.prompt[-length:]


def _special_tokens(subject: ModelUnderTest) -> Sequence[int]:
    config: Any = subject.model.config.get_text_config()
    named = [getattr(config, f"{each}_token_id", None) for each in ("bos", "eos", "pad")]
    flat = [t for each in named for t in (each if isinstance(each, list) else [each])]
    known = (*flat, *range(SPECIAL_TOKENS))
    inside = (t for t in known if isinstance(t, int) and 0 <= t < subject.vocab_size)
    return [*dict.fromkeys(t for t in inside if subject.has_answer((t,)))]


def require_pack_of(oracle: Oracle, pack: ProbePack) -> None:
    """Raises `UsageError` unless the pack is of the weights that its model has here, where an honest
    engine would be blamed for the difference."""
    best = [tuple(step.tokens[0] for step in each.steps) for each in pack.probes[:ROUND]]
    asked = [(each.prompt, path) for each, path in zip(pack.probes, best, strict=False)]
    if pack.vocab_size == oracle.subject.vocab_size:
        found = [tuple(each.argmax(-1).tolist()) for each in oracle.score_all(asked)]
        if found == best:
            return
    raise UsageError(f"the pack is of other weights than {pack.model} has here: make it anew")


def pack_of(
    oracle: Oracle,
    texts: Texts,
    seed: int,
    num: int,
    noise: tuple[float, tuple[PrecisionNoise, ...]],
    found: Sequence[Probe],
    on_probes: Callable[[int], object] = lambda _: None,
) -> ProbePack:
    """Returns the pack of the best `num` of these candidates. Calls `on_probes` with the number that
    has just been scored under other configurations, which takes as long as finding candidates."""
    subject, (unit, precisions) = oracle.subject, noise
    probes = chosen(found, unit, precisions, num)
    with torch.inference_mode():
        names, probes = configured(oracle, texts, probes, unit, on_probes)
    return ProbePack(
        made=made_now(),
        model=subject.name,
        dtype=subject.dtype_name,
        seed=seed,
        vocab_size=subject.vocab_size,
        unit=unit,
        precisions=precisions,
        configurations=names,
        probes=probes,
        is_chat=texts.is_chat,
    )
