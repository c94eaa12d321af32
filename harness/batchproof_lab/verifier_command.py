"""`batchproof lab verifier`: the power and the false alarms of triage, on simulated endpoints, beside
published methods on the same endpoints."""

import argparse
import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from batchproof.cli import choices
from batchproof.cli.progress import Progress
from batchproof.cli.result_files import write_result
from batchproof.models.catalogue import ModelUnderTest, resolve_dtype
from batchproof.oracle.oracle import Prompt
from batchproof.oracle.precision import AS_SERVED, Precision
from batchproof.oracle.rounding import coarse
from batchproof.records.file_kinds import FileKind
from batchproof.records.probe_packs import Probe, ProbePack, Step
from batchproof.records.provenance import Provenance, made_now
from batchproof.run.devices import exact_device, num_threads
from batchproof.run.laboratory import Laboratory
from batchproof.statistics import share_bound
from batchproof.triage import making
from batchproof.triage.deciding import Rule, Triage
from batchproof.triage.hypotheses import Evidence, Seen
from batchproof.triage.texts import Texts
from batchproof.validation.values import at_least
from batchproof_lab.pages import page
from batchproof_lab.verifier_endpoints import (
    FINER,
    HONEST,
    INT4,
    KINDS,
    VARIANTS,
    Endpoint,
    Floats,
    Kind,
    Tables,
    chosen,
    kernel_noise,
    tables,
)

ALPHA, POWER = 0.001, 0.98
REQUESTS = (4, 8, 20, 40, 80, 120, 200, 320)  # of the table of power
NUM_PROBES, NUM_CANDIDATES, NUM_HIDING = 96, 384, 30
FP8, FP8_CACHE = Precision("bfloat16", weights="fp8"), Precision("bfloat16", kv_cache="fp8")
COMPARED = {"int4 weights": INT4, "fp8 weights": FP8, "fp8 keys and values": FP8_CACHE}
LEAK = "leak of 1 % in company"
LONG, NUM_LONG, ANSWER = 65, 160, 16  # tokens of ordinary prompts, their number, tokens of an answer
AMOUNTS = (100, 300, 1_000, 3_000, 10_000)  # tokens
SHORT, NUM_SHORT, TIMES = 4, 2_000, 3  # tokens of inputs of one token, their number, how often asked
BORDERS, REFERENCE = (2, 5, 10, 20), 10  # inputs that are watched, and answers to each before
SAMPLED, SAMPLES, PER_PROMPT = 20, 40, (5, 10, 20)  # prompts, completions that are drawn, and used
NUM_TESTS, NUM_PERMUTED, NUM_CALIBRATED = 60, 1_000, 400


@dataclass(frozen=True)
class KindRow:
    """`told`: requests and tokens at which each endpoint was known not to be honest; `verdicts`: as
    many until the verdict. `wrong` are the words of wrong verdicts and causes."""

    kind: str
    num: int
    right: int
    named: int
    told: tuple[tuple[int, int], ...]
    verdicts: tuple[tuple[int, int], ...]
    wrong: tuple[str, ...]

    def power(self, most: float, of: int = 0) -> float:
        """Returns the share told within so many requests, or tokens with `of=1`."""
        return sum(each[of] <= most for each in self.told) / self.num

    def within(self, share: float, of: int, verdicts: bool = False) -> int | None:
        """Returns by when this share of all is told, or judged; None: of fewer."""
        place = math.ceil(share * self.num) - 1
        rows = sorted(each[of] for each in (self.verdicts if verdicts else self.told))
        return rows[place] if place < len(rows) else None


@dataclass(frozen=True)
class MethodRow:
    """Power of a method on one kind, by requests and tokens; empty where it cannot see it."""

    method: str
    kind: str
    powers: tuple[tuple[int, int, float], ...]
    before: int = 0  # requests to an earlier self of the endpoint

    @property
    def words(self) -> str:
        if not self.powers:
            return "cannot see it"
        told = next((each for each in self.powers if each[2] >= POWER), None)
        requests, tokens, power = told or self.powers[-1]
        at = f"{tokens:,} tokens in {requests:,} requests"
        return f"{at}{f', after {self.before:,}' if self.before else ''}" + (
            "" if told else f" (power {power:.2f})"
        )


@dataclass(frozen=True)
class HidingRow:
    """How well prompts of a pack are told from ordinary ones, as areas under ROC curves by what is
    looked at, and the requests in which triage tells each kind with them."""

    pack: str
    areas: Mapping[str, float]
    requests: Mapping[str, int | None]


@dataclass(frozen=True)
class VerifierRecord:
    """`honest_bound`: no more than this share of honest endpoints is blamed, with 95 % confidence."""

    made: Provenance
    model: str
    unit: float
    precisions: Mapping[str, float]
    kinds: tuple[KindRow, ...]
    honest_bound: float
    methods: tuple[MethodRow, ...]
    hiding: tuple[HidingRow, ...]


VERIFIER = FileKind("record of a verifier", "batchproof.verifier", 1, VerifierRecord)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", default="tiny", help="an embedded model or a shape (default: tiny)")
    choices.add_count(parser, "--endpoints", 1_000, "to judge, half of them honest")
    choices.add_seed(parser, 0)
    parser.add_argument("--output", type=Path, default=Path("results"), help="where record and page go")


def run(arguments: argparse.Namespace) -> int:
    """Returns 1 if an honest endpoint is blamed, else 0. Raises `UsageError` for an unknown model."""
    at_least("--endpoints", arguments.endpoints, 2 * len(KINDS))
    output, seed = choices.writable(arguments.output), arguments.seed
    with exact_device("cpu") as device, num_threads(torch.get_num_threads()):
        lab = Laboratory(device, resolve_dtype("bfloat16"), 3600.0)
        oracle = lab.oracle(arguments.model)
        subject, texts = oracle.subject, replace(Texts.of(oracle.subject, False), are_used=False)
        noise = making.noise_of(subject, seed)
        bar = Progress("prompts", "prompt", 2 * NUM_CANDIDATES)
        drawn: list[list[making.Candidate]] = [[], []]
        for start in range(0, 2 * NUM_CANDIDATES, making.ROUND):
            drawn[start >= NUM_CANDIDATES] += making.candidates(oracle, texts, seed, start)
            bar.step(making.ROUND)
        bar.close()
        pack_of = partial(making.pack_of, oracle, texts, seed, NUM_PROBES, noise)
        packs = {"as chosen": pack_of(drawn[0]), "as drawn": pack_of(drawn[0][:NUM_PROBES])}
        known = {name: _tables_of(subject, texts, pack) for name, pack in packs.items()}
        ordinary = making.chosen(drawn[1], noise[0], (), len(drawn[1]))
        kinds = _judged(packs["as chosen"], known["as chosen"], arguments.endpoints)
        rows = {each.kind: each for each in kinds}
        methods = (
            *(_of_triage(rows[kind]) for kind in (*COMPARED, LEAK)),
            *_token_difr(subject, noise[0], seed),
            *_b3it(subject, noise[0], seed),
            *_equality(subject, seed),
        )
        hiding = tuple(_hiding(name, pack, known[name], ordinary) for name, pack in packs.items())
    blamed = rows[HONEST.name].num - rows[HONEST.name].right
    record = VerifierRecord(
        made_now(),
        subject.name,
        noise[0],
        {each.name: each.shift for each in noise[1]},
        kinds,
        share_bound(blamed, rows[HONEST.name].num, 0.05),
        methods,
        hiding,
    )
    write_result(VERIFIER, record, _page, output, "verifier", arguments.endpoints >= 1_000)
    return int(blamed > 0)


def _page(record: VerifierRecord) -> str:
    methods = list(dict.fromkeys(each.method for each in record.methods))
    compared = [*COMPARED, LEAK]
    words = {(each.method, each.kind): each.words for each in record.methods}
    fixed = {"amounts": REQUESTS, "methods": methods, "compared": compared, "words": words}
    return page("verifier", record=record, alpha=ALPHA, **fixed)


def _tables_of(subject: ModelUnderTest, texts: Texts, pack: ProbePack) -> Tables:
    bar = Progress("rounded copies", "copy", len(VARIANTS))
    changes = making.configurations(subject, texts)
    found = tables(subject, pack.probes, pack.unit, changes, VARIANTS, bar.step)
    bar.close()
    return found


class Remembering(Evidence):
    """Weighs the same answers once for all endpoints."""

    known_ratios: dict[object, tuple[float, ...]]

    def against(self, answers: Sequence[Seen]) -> tuple[float, ...]:
        key = answers[0].probe, tuple(sorted((e.scene, e.step, e.place) for e in answers))
        if key not in self.known_ratios:
            self.known_ratios[key] = super().against(answers)
        return self.known_ratios[key]


def _judged(pack: ProbePack, known: Tables, num: int) -> tuple[KindRow, ...]:
    """Returns the rows of honest endpoints, one half, and of all other kinds."""
    of_kind = {HONEST: num // 2} | {each: num // 2 // len(KINDS) for each in KINDS}
    bar, ratios = Progress("endpoints", "endpoint", sum(of_kind.values())), {}
    rows = [_row(pack, known, kind, n, ratios, bar.step) for kind, n in of_kind.items()]
    bar.close()
    return tuple(rows)


def _row(
    pack: ProbePack,
    known: Tables,
    kind: Kind,
    num: int,
    ratios: dict[object, tuple[float, ...]],
    step: Callable[[], None] = lambda: None,
) -> KindRow:
    told, verdicts, wrong, right = [], [], [], 0
    for number in range(num):
        endpoint = Endpoint(kind, number, pack.probes, known, pack.unit)
        at: list[tuple[int, int]] = []

        def note(_: str, endpoint: Endpoint = endpoint, at: list[tuple[int, int]] = at) -> None:
            if not at and triage.evidence.against_honest >= -math.log(ALPHA):
                at.append((endpoint.num_requests, endpoint.num_tokens))

        triage = Triage(endpoint, pack, Rule(alpha=ALPHA, seed=number), is_ours=False, note=note)
        triage.evidence = Remembering(pack, triage.evidence.known)
        triage.evidence.known_ratios = ratios
        found = triage.decide(kind.name)
        told += at
        verdicts.append((endpoint.num_requests, endpoint.num_tokens))
        right += found.verdict == kind.verdict
        is_named = any(each in found.why for each in kind.causes) or kind == HONEST
        if found.verdict != kind.verdict or not is_named:
            wrong.append(f"{found.verdict}: {found.why}")
        step()
    return KindRow(kind.name, num, right, num - len(wrong), tuple(told), tuple(verdicts), tuple(wrong))
