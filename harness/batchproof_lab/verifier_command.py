"""`batchproof lab verifier`: the power and the false alarms of triage on simulated endpoints, beside
published methods on the same endpoints."""

import argparse
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from batchproof.cli import choices
from batchproof.cli.progress import Progress
from batchproof.cli.result_files import write_result
from batchproof.models.catalogue import ModelUnderTest, resolve_dtype
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
from batchproof.triage.texts import Texts, random_prompt
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
    Table,
    Tables,
    kernel_noise,
    tables,
)

ALPHA, POWER = 0.001, 0.98
REQUESTS = (4, 8, 20, 40, 80, 120, 200, 300)  # of the table of power
NUM_PROBES, NUM_CANDIDATES, NUM_ORDINARY, NUM_HIDING = 96, 384, 128, 30
FP8, FP8_CACHE = Precision("bfloat16", weights="fp8"), Precision("bfloat16", kv_cache="fp8")
COMPARED = {"int4 weights": INT4, "fp8 weights": FP8, "fp8 keys and values": FP8_CACHE}
LEAK = "leak of 1 % in company"
DIFR, B3IT, MET = "Token-DiFR", "B3IT", "Model Equality Testing"
AMOUNTS, ANSWER = (
    (16, 48, 100, 300, 1_000, 3_000, 10_000),
    16,
)  # tokens of ordinary answers, and of each
NUM_INPUTS, TIMES, REFERENCE = 2_000, 3, 10  # inputs of one token, how often each is asked, and before
BORDERS = (2, 5, 10, 20)  # inputs that are watched
SAMPLED, SAMPLES, PER_PROMPT = 20, 40, (5, 10, 20)  # prompts; completions that are drawn, and used
NUM_TESTS, NUM_PERMUTED, NUM_CALIBRATED = 20, 2_000, 400
Counted = tuple[tuple[int, int], ...]  # requests and tokens
Ratios = dict[object, tuple[float, ...]]


@dataclass(frozen=True)
class KindRow:
    """`told`: when each endpoint was known not to be honest, `judged`: when it got its verdict.
    `wrong`: the words of wrong verdicts and causes."""

    kind: str
    num: int
    right: int
    told: Counted
    judged: Counted
    wrong: tuple[str, ...]

    def power(self, most: int) -> float:
        """Returns the share told within so many requests."""
        return sum(requests <= most for requests, _ in self.told) / self.num


@dataclass(frozen=True)
class MethodRow:
    """Power of a method on one kind, by requests and tokens; empty where it cannot see it. `before`:
    requests to an earlier self of the endpoint."""

    method: str
    kind: str
    powers: tuple[tuple[int, int, float], ...] = ()
    before: int = 0


@dataclass(frozen=True)
class HidingRow:
    """How well the prompts of a pack are told from ordinary ones: areas under ROC curves. `power`: of
    triage within 20 requests."""

    pack: str
    areas: Mapping[str, float]
    power: Mapping[str, float]


@dataclass(frozen=True)
class VerifierRecord:
    """`honest_bound`: no more than this share of honest endpoints is blamed, with 95 % confidence."""

    made: Provenance
    model: str
    unit: float
    shifts: Mapping[str, float]
    kinds: tuple[KindRow, ...]
    honest_bound: float
    methods: tuple[MethodRow, ...]
    hiding: tuple[HidingRow, ...]


VERIFIER = FileKind("record of a verifier", "batchproof.verifier", 1, VerifierRecord)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", default="tiny", help="an embedded model or a shape (default: tiny)")
    choices.add_count(parser, "--endpoints", 1_000, "to judge, half of them honest")
    choices.add_seed(parser)
    parser.add_argument("--output", type=Path, default=Path("results"), help="where record and page go")


def run(arguments: argparse.Namespace) -> int:
    """Returns 1 if an honest endpoint is blamed, else 0. Raises `UsageError` for an unknown model."""
    at_least("--endpoints", arguments.endpoints, 2 * len(KINDS))
    output, seed = choices.writable(arguments.output), arguments.seed
    with exact_device("cpu") as device, num_threads(1):
        oracle = Laboratory(device, resolve_dtype("bfloat16"), 3600.0).oracle(arguments.model)
        subject, texts = oracle.subject, replace(Texts.of(oracle.subject, False), are_used=False)
        unit, precisions = noise = making.noise_of(subject, seed)
        bar = Progress("prompts", "prompt", NUM_CANDIDATES + NUM_ORDINARY)
        drawn: list[making.Candidate] = []
        for start in range(0, NUM_CANDIDATES + NUM_ORDINARY, making.ROUND):
            drawn += making.candidates(oracle, texts, seed, start)
            bar.step(making.ROUND)
        bar.close()
        # Some prompts have no answer, and are left out: the last are ordinary.
        ours, others = drawn[:-NUM_ORDINARY], drawn[-NUM_ORDINARY:]
        ordinary = making.chosen(others, unit, (), len(others))
        changes = making.configurations(subject, texts)
        hiding: list[HidingRow] = []
        kinds: dict[str, KindRow] = {}
        for name, among in (("chosen", ours), ("not chosen", ours[:NUM_PROBES])):
            pack = making.pack_of(oracle, texts, seed, NUM_PROBES, noise, among)
            known = tables(subject, pack.probes, unit, changes, VARIANTS)
            counts = {each: NUM_HIDING for each in KINDS if each.name in COMPARED}
            if not hiding:
                num = arguments.endpoints // 2
                counts = {HONEST: num} | dict.fromkeys(KINDS, num // len(KINDS))
            rows = _judged(pack, known, counts)
            power = {kind: rows[kind].power(20) for kind in COMPARED}
            hiding.append(HidingRow(name, _areas(pack, ordinary), power))
            kinds = kinds or rows
        methods = [*_token_difr(subject, unit, seed), *_b3it(subject, unit, seed)]
        methods += _equality(subject, seed)
    honest = kinds[HONEST.name]
    bound, shifts = share_bound(honest.num - honest.right, honest.num, 0.05), precisions
    record = VerifierRecord(
        made_now(),
        subject.name,
        unit,
        {each.name: each.shift for each in shifts},
        (*kinds.values(),),
        bound,
        (*(_of_triage(kinds[kind]) for kind in (*COMPARED, LEAK)), *methods),
        tuple(hiding),
    )
    write_result(VERIFIER, record, _page, output, "verifier", arguments.endpoints >= 1_000)
    return int(honest.right < honest.num)


def _page(record: VerifierRecord) -> str:
    words = {(each.method, each.kind): _words(each) for each in record.methods}
    kinds, methods = (*COMPARED, LEAK), ("triage", DIFR, B3IT, MET)
    names = {"requests": REQUESTS, "methods": methods, "compared": kinds, "words": words}
    return page("verifier", record=record, quantile=_quantile, alpha=ALPHA, **names)


def _quantile(rows: Counted, share: float, of: int) -> int | str:
    return sorted(each[of] for each in rows)[math.ceil(share * len(rows)) - 1] if rows else "-"


def _words(row: MethodRow) -> str:
    if not row.powers:
        return "cannot see it"
    told = next((each for each in row.powers if each[2] >= POWER), None)
    requests, tokens, power = told or row.powers[-1]
    before = f", after {row.before:,} to its earlier self" if row.before else ""
    return f"{tokens:,} tokens, {requests:,} requests{before}{'' if told else f': power {power:.2f}'}"


class Remembering(Evidence):
    """Weighs the same answers once for all endpoints."""

    ratios_of: Ratios

    def against(self, answers: Sequence[Seen]) -> tuple[float, ...]:
        key = answers[0].probe, tuple(sorted((e.scene, e.left) for e in answers))
        if key not in self.ratios_of:
            self.ratios_of[key] = super().against(answers)
        return self.ratios_of[key]


def _judged(pack: ProbePack, known: Tables, counts: Mapping[Kind, int]) -> dict[str, KindRow]:
    bar, ratios, rows = Progress("endpoints", "endpoint", sum(counts.values())), Ratios(), {}
    for kind, num in counts.items():
        told: list[tuple[int, int]] = []
        judged, wrong, right = [], [], 0
        for number in range(num):
            endpoint = Endpoint(kind, number, pack.probes, known, pack.unit)
            odds: list[tuple[int, int, float]] = []
            triage = Triage(endpoint, pack, Rule(alpha=ALPHA, seed=number), is_ours=False)
            triage.evidence = evidence = Remembering(pack, triage.evidence.known)
            evidence.ratios_of = ratios
            triage.note = lambda _, e=endpoint, w=evidence, to=odds: to.append(  # type: ignore[misc]
                (e.num_requests, e.num_tokens, w.against_honest)
            )
            found = triage.decide(kind.name)
            told += [(r, t) for r, t, odd in odds if odd >= -math.log(ALPHA)][:1]
            judged.append((endpoint.num_requests, endpoint.num_tokens))
            right += found.verdict == kind.verdict
            if found.verdict != kind.verdict or not any(each in found.why for each in kind.causes):
                wrong.append(f"{found.verdict}: {found.why}")
            bar.step()
        rows[kind.name] = KindRow(kind.name, num, right, tuple(told), tuple(judged), tuple(wrong))
    bar.close()
    return rows


def _of_triage(row: KindRow) -> MethodRow:
    told = enumerate(sorted(row.told), 1)
    return MethodRow("triage", row.kind, tuple((*at, place / row.num) for place, at in told))


def _pool(
    subject: ModelUnderTest, unit: float, seed: int, num: int, length: int, copies: Sequence[Precision]
) -> dict[Precision, Table]:
    """Returns one table of all places but the first of random prompts, for each copy."""
    rng = random.Random(seed)
    drawn = [random_prompt(subject, rng, length) for _ in range(num)]
    probes = [Probe(each[:1], tuple(Step((t,), (0.0,)) for t in each[1:])) for each in drawn]
    known = tables(subject, probes, unit, {}, [(each, "", False) for each in copies])
    return {
        copy: Table(
            *(np.concatenate([getattr(e, n)[:, :16] for e in rows]) for n in Table.__match_args__)
        )
        for (copy, _, _), rows in known.items()
    }


def _token_difr(subject: ModelUnderTest, unit: float, seed: int) -> Iterator[MethodRow]:
    """Token-DiFR at temperature 0: how far each token is behind the best in the verifier's own logits,
    clipped, and averaged; the threshold is that of honest endpoints."""
    pool = _pool(subject, unit, seed, -(-AMOUNTS[-1] // 64), 65, (*FINER, *COMPARED.values()))

    def scores(precision: Precision, number: int) -> Floats:
        table, rng = pool[precision], np.random.default_rng((number, 6))
        places = table.chosen(kernel_noise(table.values.shape, number, 8), rng)
        return table.behind[np.arange(len(places)), places].reshape(-1, ANSWER)

    def means(of: Floats, number: int) -> list[float]:
        order = np.random.default_rng((number, 7)).permutation(len(of))
        sums = np.minimum(of, clip)[order].ravel().cumsum()
        return [float(sums[n - 1] / n) for n in AMOUNTS]

    honest = [scores(FINER[i % len(FINER)], i) for i in range(NUM_CALIBRATED)]
    clip = np.quantile(np.stack(honest[:60]), 0.999)
    calm = [means(each, 10 * i + k) for i, each in enumerate(honest) for k in range(10)]
    rng, threshold = np.random.default_rng(seed), np.quantile(calm, 1 - ALPHA, axis=0)
    seen = {name: [scores(each, 5_000 + i) for i in range(100)] for name, each in COMPARED.items()}
    seen[LEAK] = [np.where(rng.random((len(e), 1)) < 0.01, np.float32(clip), e) for e in honest]
    for kind, endpoints in seen.items():
        told = np.mean([means(e, 9_000 + i) > threshold for i, e in enumerate(endpoints)], 0)
        powers = ((math.ceil(n / ANSWER), n, p) for n, p in zip(AMOUNTS, told.tolist(), strict=True))
        yield MethodRow(DIFR, kind, tuple(powers))


def _b3it(subject: ModelUnderTest, unit: float, seed: int) -> Iterator[MethodRow]:
    """B3IT: inputs whose first token is not always the same, found by asking the endpoint's earlier,
    honest self; then the share of later first tokens that it has never answered."""
    pool = _pool(subject, unit, seed + 1, NUM_INPUTS, 2, (AS_SERVED, INT4, FP8))

    def answers(precision: Precision, number: int, salt: int, times: int) -> Floats:
        table, rng = pool[precision], np.random.default_rng((number, salt))
        fixed = kernel_noise(table.values.shape, number, 3)
        rows = np.arange(NUM_INPUTS)
        return np.stack([table.tokens[rows, table.chosen(fixed, rng)] for _ in range(times)])

    def change(precision: Precision, number: int) -> list[float]:
        before = answers(AS_SERVED, number, 0, TIMES + REFERENCE)
        borders = np.flatnonzero((before[:TIMES] != before[0]).any(0))[: BORDERS[-1]]
        now = answers(precision, number, 1, TIMES)[:, borders]
        is_new = (now[:, None] != before[:, borders]).all(1).mean(0)
        return [float(is_new[:n].mean()) if len(is_new) else 0.0 for n in BORDERS]

    calm = [change(AS_SERVED, i) for i in range(2 * NUM_CALIBRATED)]
    threshold, before = np.quantile(calm, 1 - ALPHA, axis=0), NUM_INPUTS * TIMES + 20 * REFERENCE
    for kind, precision in COMPARED.items():
        if precision not in pool:  # a cache shows from the second token on
            yield MethodRow(B3IT, kind)
            continue
        told = np.mean([change(precision, 5_000 + i) > threshold for i in range(60)], 0)
        powers = ((n * TIMES, n * TIMES, p) for n, p in zip(BORDERS, told.tolist(), strict=True))
        yield MethodRow(B3IT, kind, tuple(powers), before)
    yield MethodRow(B3IT, LEAK)


@torch.inference_mode()
def _equality(subject: ModelUnderTest, seed: int) -> Iterator[MethodRow]:
    """Model Equality Testing: the maximum mean discrepancy of completions at temperature 1, with a
    Hamming kernel, against samples of the reference; permutations within each prompt calibrate it."""
    torch.manual_seed(seed)
    rng, prompts = np.random.default_rng(seed), torch.randint(subject.vocab_size, (SAMPLED, 12))
    given = prompts.repeat_interleave(SAMPLES, 0)

    def sampled(precision: Precision) -> torch.Tensor:
        drawn = coarse(subject.model, precision).generate(
            given,
            attention_mask=torch.ones_like(given),
            max_new_tokens=ANSWER,
            min_new_tokens=ANSWER,
            do_sample=True,
            top_k=0,
            pad_token_id=0,
        )
        return drawn[:, 12:].reshape(SAMPLED, SAMPLES, -1)

    def is_told(kernel: Floats, num: int) -> bool:
        kept = np.concatenate([rng.choice(SAMPLES, num, False) + i for i in (0, SAMPLES)])
        here, signs = kernel[:, kept][:, :, kept], np.repeat([1.0, -1.0], num)
        every = rng.permuted(np.tile(signs, (NUM_PERMUTED, SAMPLED, 1)), axis=-1)
        every[0] = signs
        found = (np.einsum("apn,pnm->apm", every, here, optimize=True) * every).sum((1, 2))
        return bool((found >= found[0] - 1e-9).mean() <= ALPHA)

    reference = sampled(AS_SERVED)
    for kind, precision in COMPARED.items():
        both = torch.cat((reference, sampled(precision)), 1)
        kernel = (both[:, :, None] == both[:, None]).float().mean(-1).numpy()
        powers = []
        for num in PER_PROMPT:
            power = np.mean([is_told(kernel, num) for _ in range(NUM_TESTS)])
            powers.append((SAMPLED * num, SAMPLED * num * ANSWER, float(power)))
        yield MethodRow(MET, kind, tuple(powers))
    yield MethodRow(MET, LEAK)


def _areas(pack: ProbePack, ordinary: Sequence[Probe]) -> dict[str, float]:
    """Returns the areas by what a provider sees, for the near-ties and for the whole pack."""
    counts = np.ones(pack.vocab_size)
    for each in ordinary[::2]:
        np.add.at(counts, list(each.prompt), 1)
    looks = {
        "length of the prompt": lambda e: len(e.prompt),
        "frequency of its tokens": lambda e: np.log(counts[list(e.prompt)]).mean(),
        "margin of the first token": lambda e: e.steps[0].behind[1],
        "least margin of the answer": lambda e: min(step.behind[1] for step in e.steps),
    }
    half = len(pack.probes) // 2
    found = {}
    for look, of in looks.items():
        for name, part in (("near-ties", pack.probes[:half]), ("whole pack", pack.probes)):
            ours, others = (np.array([of(e) for e in group]) for group in (part, ordinary[1::2]))
            differs = ours[:, None] - others
            area = float((differs > 0).mean() + (differs == 0).mean() / 2)
            found[f"{look}, {name}"] = max(area, 1 - area)  # in the better direction
    return found
