"""Engines whose truth is known, under names that say nothing: what triage itself is judged on.

Half are honest: exact, coarse, or set otherwise. Half have a planted fault. A fault can take part if
the kill table shows it on `gpt2-hash` or `llama-hash` as a break of one of the promises about answers,
P1 to P8, not only by tests that step the engine or read its logits, and if its lie is not one about
returned logits whose "tokens are right". A fault whose cause is
PRECISION is no corruption: every token that it changes is a near-tie, and so it is among the coarse.

Faults, kinds of arithmetic and kinds of settings are divided in two: what the rules were made on, and
what is held out.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from typing import Any

from batchproof.findings.causes import Cause
from batchproof.places import ROOT
from batchproof.records.kills import KILL_TABLE, FaultRow
from batchproof.records.triage import CLEAN, CONFIG, CORRUPTION, ROUNDING, Verdict
from batchproof.run.registry import coarse_engines, faults, oddities, set_engines

NUM_FAULTY, NUM_HONEST = 50, 50
ABOUT_ANSWERS = {f"P{number}" for number in range(1, 9)}
ASKED_MODELS = {"gpt2-hash", "llama-hash"}  # `llama-twins` has the body of the latter
BEYOND_GENERATE = ('"stepping"', '"logits"')  # needs of tests that do more than compare answers
TOKENS_ARE_RIGHT = "the tokens are right"  # says a lie about returned logits
# Kinds that were looked at while the rules were made; all others are held out.
SEEN_ARITHMETIC = {
    *("bfloat16", "float16", "logits_in_bfloat16"),
    *("weights_in_8_bits", "cache_in_8_bits", "noise_by_chance"),
}
SEEN_SETTINGS = {"bos_0", "last_40", "repetition_1_1", "temperature_1", "without_window"}
SEEN_BELOW = "74"  # of the digest of a fault's name: 34 of the first 84
EXACT_KINDS = ("admission", "blocks", "computing", "delivery", "waves")  # of oddities


@dataclass(frozen=True)
class Blinded:
    """An engine by what it is; `truth` are the verdicts that are right."""

    target: str
    truth: tuple[Verdict, ...]
    what: str


def blinded(seed: int, is_held_out: bool) -> list[Blinded]:
    """Returns the engines in an order that tells nothing."""
    faulty = [
        Blinded(f"fault:{name}", (CORRUPTION,), faults()[name].summary)
        for name in eligible_faults()
        if (_digest(name) >= SEEN_BELOW) is is_held_out
    ]
    coarse = _coarse(is_held_out)
    room = NUM_HONEST - len(coarse)
    rng = random.Random(seed)
    found = [*faulty[:NUM_FAULTY], *coarse, *_exact(rng, room)]
    rng.shuffle(found)
    return found


def _coarse(is_held_out: bool) -> list[Blinded]:
    """Returns every kind of arithmetic on every base, each kind of settings on one, and the faults that
    are coarse."""
    near = [
        Blinded(f"coarse:{name}", (ROUNDING,), each.summary)
        for name, each in coarse_engines().items()
        if (each.kind not in SEEN_ARITHMETIC) is is_held_out
    ]
    if is_held_out:
        near += [
            Blinded(f"fault:{name}", (ROUNDING,), each.summary)
            for name, each in faults().items()
            if each.cause is Cause.PRECISION and each.shows_on is None
        ]
    by_kind: dict[str, list[tuple[str, Any]]] = {}
    for name, each in set_engines().items():
        if (each.kind not in SEEN_SETTINGS) is is_held_out:
            by_kind.setdefault(each.kind, []).append((name, each))
    for place, variants in enumerate(by_kind.values()):
        name, each = variants[place % len(variants)]
        near.append(Blinded(f"set:{name}", (CONFIG,), each.summary))
    return near


def _exact(rng: random.Random, count: int) -> list[Blinded]:
    """Returns honest oddities; near-ties may be decided otherwise by any of them."""
    names = [name for name, each in oddities().items() if each.kind in EXACT_KINDS]
    truth = (CLEAN, ROUNDING)
    return [
        Blinded(f"odd:{name}", truth, oddities()[name].summary) for name in rng.sample(names, count)
    ]


def eligible_faults() -> list[str]:
    """Returns the faults that can take part, in an order fixed by their names."""
    rows = KILL_TABLE.read(ROOT / "results" / "faults.json").faults
    found = [name for name, row in rows.items() if name in faults() and _is_eligible(name, row)]
    return sorted(found, key=_digest)


def _digest(name: str) -> str:
    return sha256(f"triage 0 {name}".encode()).hexdigest()


def _is_eligible(name: str, row: FaultRow) -> bool:
    is_about_answers = row.promise in ABOUT_ANSWERS and row.cause != Cause.PRECISION.name
    is_about_answers &= TOKENS_ARE_RIGHT not in faults()[name].summary
    tests = {each.caught_by for each in row.kills if each.caught_by}
    is_shown = any(not _goes_beyond_generate(each) for each in tests)
    return is_about_answers and is_shown and bool(ASKED_MODELS & {*row.models})


@cache
def _goes_beyond_generate(test: str) -> bool:
    """Returns whether the marks of a test function name a capability beyond `generate`."""
    file, _, name = test.partition("::")
    source = (ROOT / file).read_text(encoding="utf-8")
    before = source[: source.index(f"def {name}(")].splitlines()
    start = next((i for i in range(len(before) - 1, -1, -1) if not before[i].strip()), 0)
    marks = "\n".join(before[start:])
    return any(each in marks for each in BEYOND_GENERATE)
