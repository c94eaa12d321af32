"""`batchproof lab flips`: how often a precision changes a token, by the margin of the token.

A greedy token is a comparator: noise flips it if the noise exceeds the margin, best logit minus second
in float64. So a prompt of known margin measures the noise of whoever answers it. The unit of margins is
sigma, the root mean square of the shift of margins by bfloat16 arithmetic: the noise of an honest
engine. Prompts whose margin bfloat16 does not reach, and a precision does, tell this precision.

Simulated precisions (`oracle/rounding.py`) are read at every token of random prompts. Engines are asked
for a few tokens after each prompt: the first comes from prefill, the others from decode.
"""

import argparse
import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import torch
from torch import Tensor

from batchproof.api import EngineConfig, FinishReason, Request
from batchproof.cli import choices
from batchproof.cli.result_files import write_result
from batchproof.errors import UsageError
from batchproof.models.catalogue import ModelUnderTest, resolve_dtype
from batchproof.models.embedded import DTYPES
from batchproof.oracle.oracle import Prompt, margins
from batchproof.records.file_kinds import FileKind
from batchproof.records.provenance import Provenance, made_now
from batchproof.requirements.promises import Promise
from batchproof.run.devices import exact_device, num_threads
from batchproof.run.laboratory import Laboratory
from batchproof.run.registry import resolve_engine
from batchproof.run.trial import Trial
from batchproof.statistics import share_bound
from batchproof.triage.noise import NOISE, PRECISIONS, ranked, root_mean_square, rounded
from batchproof.validation.values import at_least
from batchproof.workload.workloads import Workload

RUNGS = (0.0, 1.0, 2.0, 4.0, 6.0, 8.0, 12.0, 16.0, 32.0, 64.0, math.inf)  # in sigma
NUM_TOKENS = 8  # after each prompt, of an engine
RISK = 0.05  # at which the share of flips of bfloat16 is larger than its bound
ALPHA, BETA = 0.001, 0.02  # chances of a wrong verdict on an honest engine, and on another
LEAST_TOKENS = 20  # of a rung that is judged


@dataclass(frozen=True)
class Rung:
    """Tokens whose margin lies between two rungs of the ladder."""

    tokens: int
    flips: int

    @property
    def share(self) -> str:
        if not self.tokens:
            return ""
        return f"{self.flips / self.tokens:.2g} ({self.flips}/{self.tokens})"


@dataclass(frozen=True)
class Flips:
    """One precision, or one engine in a phase. `shift` is the root mean square of the shift of margins,
    in sigma; None where only tokens are known."""

    source: str
    shift: float | None
    rungs: tuple[Rung, ...]


@dataclass(frozen=True)
class ModelFlips:
    """`unit` is sigma in units of a logit, `spread` the standard deviation of the logits of a step."""

    made: Provenance
    model: str
    dtype: str
    num_prompts: int
    num_tokens: int
    unit: float
    spread: float
    flips: tuple[Flips, ...]


@dataclass(frozen=True)
class FlipsRecord:
    """One entry for each model, of the latest run that has measured it."""

    models: tuple[ModelFlips, ...]


FLIPS = FileKind("record of flips", "batchproof.flips", 1, FlipsRecord)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    choices.add_engines(parser, "asked for a few tokens after each prompt, as for pytest --engine")
    choices.add_repeatable(parser, "--model", "M", "an embedded model, a shape or a checkpoint")
    parser.add_argument("--dtype", default="bfloat16", help=f"of the weights: {', '.join(DTYPES)}")
    parser.add_argument("--prompts", type=int, default=16, help="random prompts (default: 16)")
    parser.add_argument("--length", type=int, default=64, help="tokens of each (default: 64)")
    choices.add_seed(parser)
    parser.add_argument("--output", type=Path, default=Path("results"), help="where record and page go")


def run(arguments: argparse.Namespace) -> int:
    """Returns 0. Raises `UsageError` for an unknown engine, model or dtype, and for prompts that are
    too long for a model, or that an engine refuses."""
    for name in ("prompts", "length"):
        at_least(f"--{name}", getattr(arguments, name), 2)
    dtype = resolve_dtype(arguments.dtype)
    for engine in arguments.engines:
        resolve_engine(engine)  # here, as its turn comes after minutes
    output = choices.writable(arguments.output)
    path = output / "flips.json"
    found = {each.model: each for each in FLIPS.read(path).models} if path.exists() else {}
    with exact_device("cpu") as device, num_threads(torch.get_num_threads()):
        lab = Laboratory(device, dtype, 3600.0)
        for name in arguments.model or ["tiny"]:
            found[name] = _flips_of(lab, name, arguments)
            print("\n".join(_lines(found[name])), flush=True)
            write_result(FLIPS, FlipsRecord((*found.values(),)), _page, output, "flips", is_whole=True)
    return 0


def _flips_of(lab: Laboratory, name: str, arguments: argparse.Namespace) -> ModelFlips:
    subject = lab.subject(name)
    rng = random.Random(arguments.seed)
    length, most = arguments.length, subject.context_len - NUM_TOKENS
    if length > most:
        raise UsageError(f"--length is {length}, but must be at most {most} on {name}")
    prompts = [
        tuple(rng.choices(range(subject.vocab_size), k=length)) for _ in range(arguments.prompts)
    ]
    known = ranked(subject, prompts)
    shifts = {each: rounded(subject, prompts, known, each) for each in PRECISIONS}
    unit = root_mean_square(shifts[NOISE][0])
    flips = [
        Flips(
            str(each), root_mean_square(shift) / unit, _rungs(known.margin, chosen != known.best, unit)
        )
        for each, (shift, chosen) in shifts.items()
    ]
    for text in arguments.engines:
        flips += _engine_flips(lab, text, subject, prompts, unit)
    num_tokens = known.margin.numel()
    return ModelFlips(
        made_now(),
        name,
        subject.dtype_name,
        len(prompts),
        num_tokens,
        unit,
        known.spread,
        tuple(flips),
    )


def _rungs(margin: Tensor, flipped: Tensor, unit: float) -> tuple[Rung, ...]:
    found = []
    for low, high in pairwise(RUNGS):
        there = (margin >= low * unit) & (margin < high * unit)
        found.append(Rung(int(there.sum()), int((there & flipped).sum())))
    return tuple(found)


def _engine_flips(
    lab: Laboratory, text: str, subject: ModelUnderTest, prompts: Sequence[Prompt], unit: float
) -> Iterator[Flips]:
    """Yields the flips of an engine that is asked for one prompt at a time, given its own tokens."""
    spec = resolve_engine(text)
    oracle = lab.oracle(subject.name)
    trial = Trial(lab, spec, oracle, lab.capabilities(spec, subject), Promise.P1)
    phases: dict[str, list[tuple[float, bool]]] = {"prefill": [], "decode": []}
    with trial.engine(EngineConfig()) as engine:
        for number, prompt in enumerate(prompts):
            request = Request(f"r{number}", prompt, NUM_TOKENS)
            (completion,) = trial.run(Workload((request,)), engine).completions
            if completion.finish_reason is FinishReason.ERROR:
                raise UsageError(f"engine {text!r} refuses a prompt: {completion.error}")
            tokens = completion.token_ids
            logits = oracle.score(prompt, tokens)
            steps = zip(tokens, logits.argmax(-1).tolist(), margins(logits).tolist(), strict=True)
            for step, (token, best, margin) in enumerate(steps):
                phases["decode" if step else "prefill"].append((margin, token != best))
    for phase, answers in phases.items():
        margin, flipped = (torch.tensor(each) for each in zip(*answers, strict=True))
        yield Flips(f"{spec.name}, {phase}", None, _rungs(margin, flipped, unit))


def _lines(found: ModelFlips) -> Iterator[str]:
    yield from (f"## {found.model}, weights in {found.dtype}", "", *found.made.lines(), "")
    yield (
        f"{found.num_prompts} prompts, {found.num_tokens:,} tokens. Sigma is {found.unit:.3g}; the "
        f"logits of a step have a standard deviation of {found.spread:.3g}."
    )
    yield ""
    ends = ["beyond" if high == math.inf else f"{low:g} to {high:g}" for low, high in pairwise(RUNGS)]
    yield "| margin in sigma | shift | " + " | ".join(ends) + " |"
    yield "|---" * (len(ends) + 2) + "|"
    for each in found.flips:
        shift = "" if each.shift is None else f"{each.shift:.3g}"
        yield f"| {each.source} | {shift} | " + " | ".join(r.share for r in each.rungs) + " |"
    yield ""
    yield from _telling(found)


def _telling(found: ModelFlips) -> Iterator[str]:
    """Says for each source on which rung the fewest tokens tell it from bfloat16: those of a sequential
    test, about ln((1 - beta) / alpha) over the divergence of the two shares of flips (A. Wald, Annals
    of Mathematical Statistics 16, 1945). bfloat16 gets the upper bound of its share, and a rung counts
    where the lower bound of the other is above it."""
    noise = found.flips[0]
    for each in found.flips[1:]:
        pairs = zip(pairwise(RUNGS), each.rungs, noise.rungs, strict=True)
        judged = [(ends, rung, quiet) for ends, rung, quiet in pairs if rung.tokens >= LEAST_TOKENS]
        ways = []
        for (low, high), rung, quiet in judged:
            usual = share_bound(quiet.flips, quiet.tokens, RISK)
            if 1 - share_bound(rung.tokens - rung.flips, rung.tokens, RISK) > usual:
                num = math.log((1 - BETA) / ALPHA) / _divergence(rung.flips / rung.tokens, usual)
                ways.append(
                    (num, f"{low:g} to {high:g} sigma, {rung.share} against {usual:.2g} at most")
                )
        num, where = min(ways, default=(0.0, ""))
        told = "not told from bfloat16" if judged else "too few tokens to say"
        yield f"* {each.source}: {f'told by about {math.ceil(num)} tokens: {where}' if ways else told}"
    yield ""


def _divergence(seen: float, usual: float) -> float:
    """Returns the Kullback-Leibler divergence, in nats, of two shares."""
    others = (1 - seen) * math.log((1 - seen) / (1 - usual)) if seen < 1 else 0.0
    return seen * math.log(seen / usual) + others


def _page(record: FlipsRecord) -> str:
    title = ["# Flips of tokens by margin and precision", "", *__doc__.splitlines()[2:], ""]
    return "\n".join([*title, *(line for each in record.models for line in _lines(each))])
