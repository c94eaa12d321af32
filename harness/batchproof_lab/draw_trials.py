"""Writes `results/draws.md`: how often the test of drawn tokens blames draws that are right.

    python -m batchproof_lab.draw_trials [TRIALS]     (of each row; default 20000, two minutes)

A trial draws as many answers as the suite does, from their exact probabilities, with the parameters and
prompts of the suite, and gives their counts to the check of the suite.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import fields
from itertools import product

import numpy as np
import torch

from batchproof.api import Capability, Request, SamplingParams
from batchproof.checks.broken import BrokenPromise
from batchproof.checks.draws import RISK, Answer, check_counts
from batchproof.errors import UsageError
from batchproof.generators.draws import kinds_of_draws
from batchproof.generators.strategies import text_tokens
from batchproof.oracle.distributions import answer_probabilities
from batchproof.places import ROOT
from batchproof.records.file_kinds import replace_text
from batchproof.records.markdown import header, line
from batchproof.records.provenance import command_line, made_now
from batchproof.run.laboratory import Laboratory

MODELS = ("gpt2-random", "llama-random", "mistral-window", "gpt2-hash", "llama-hash")
SIZES = (600, 5400)  # draws of a built-in engine, and of one that is named
LEVELS = (1e-2, 1e-3, 1e-4, 1e-5)
FIELDS = frozenset(each.name for each in fields(SamplingParams))
SEED = 1

INTRODUCTION = """\
# Draws that are right, before the test of their frequencies

{made}
* seed {seed}; models {models}, in turn

The suite tests the frequencies of drawn tokens by a G-test, and blames an engine if right draws give
such a statistic with a chance below {risk:g}. Here right draws are made by a multinomial of the exact
probabilities. The last columns give how often p-values are below a level, in units of the level: 1.00
is as often as promised.
"""


def p_values(lab: Laboratory, num_trials: int) -> dict[tuple[str, int], list[float]]:
    """Returns the p-values of each kind of draws and number of draws."""
    rng = np.random.default_rng(SEED)
    found: dict[tuple[str, int], list[float]] = {}
    for model, size in product(MODELS, SIZES):
        oracle = lab.oracle(model)
        prompt = text_tokens(5, oracle.subject.vocab_size)[:3]
        for kind in kinds_of_draws(oracle, frozenset(Capability), FIELDS, prompt, size):
            if kind.sampling is None:
                continue
            num_draws = size // kind.every
            request = kind.request(prompt, 0)
            shares = answer_probabilities(oracle, request)
            exact = np.array([*shares.values()])
            for drawn in rng.multinomial(num_draws, exact / exact.sum(), num_trials // len(MODELS)):
                counts = dict(zip(shares, drawn.tolist(), strict=True))
                found.setdefault((kind.name, num_draws), []).append(_p_value(request, counts, shares))
    return found


def _p_value(request: Request, counts: Mapping[Answer, int], shares: Mapping[Answer, float]) -> float:
    """Returns the p-value of counts; 0 if the suite blames them."""
    try:
        return check_counts(request, counts, shares)
    except BrokenPromise:
        return 0.0


def main(arguments: list[str]) -> None:
    if not all(each.isdecimal() for each in arguments) or len(arguments) > 1:
        raise UsageError(f"{arguments} must be one whole number: how many trials each row has")
    num_trials = int(arguments[0]) if arguments else 20_000
    lab = Laboratory(torch.device("cpu"), torch.float32, time_limit_s=60.0)
    found = p_values(lab, num_trials)
    made = made_now(command_line("python", "-m", "batchproof_lab.draw_trials"))
    text = INTRODUCTION.format(
        made="\n".join(made.lines()), seed=SEED, models=", ".join(MODELS), risk=RISK
    )
    levels = [f"p < {level:g}" for level in LEVELS]
    table = [*header("draws of", "draws", "trials", "alarms", *levels)]
    table += [_row(name, str(size), np.array(each)) for (name, size), each in found.items()]
    table += [_row("all", "", np.array([p_value for each in found.values() for p_value in each]))]
    replace_text(ROOT / "results" / "draws.md", "\n".join([text, *table, ""]))
    print("\n".join(table))


def _row(name: str, size: str, p_values: np.ndarray) -> str:
    """A row: beside each level how often it is met, in units of the level."""
    shares = (f"{(p_values < level).mean() / level:.2f}" for level in LEVELS)
    return line(name, size, f"{len(p_values):,}", str((p_values == 0).sum()), *shares)


if __name__ == "__main__":
    main(sys.argv[1:])
