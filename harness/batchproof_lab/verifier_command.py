"""`batchproof lab verifier`: the power and the false alarms of triage on simulated endpoints."""

import argparse
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from batchproof.cli import choices
from batchproof.cli.progress import Progress
from batchproof.cli.result_files import write_result
from batchproof.models.catalogue import resolve_dtype
from batchproof.records.file_kinds import FileKind
from batchproof.records.probe_packs import ProbePack
from batchproof.records.provenance import Provenance, made_now
from batchproof.run.devices import exact_device, num_threads
from batchproof.run.laboratory import Laboratory
from batchproof.statistics import share_bound
from batchproof.triage.deciding import Rule, Triage
from batchproof.triage.making import configurations
from batchproof.triage.pack_command import pack_without_texts
from batchproof.triage.texts import Texts
from batchproof.validation.values import at_least
from batchproof_lab.pages import page
from batchproof_lab.verifier_endpoints import HONEST, KINDS, Endpoint, Kind, Tables, tables

ALPHA = 0.001
REQUESTS = (4, 8, 20, 40, 80, 120, 200, 300)  # of the table of power
NUM_PROBES, NUM_CANDIDATES = 96, 384
Counted = tuple[tuple[int, int], ...]  # requests and tokens


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
class VerifierRecord:
    """`honest_bound`: no more than this share of honest endpoints is blamed, with 95 % confidence."""

    made: Provenance
    model: str
    unit: float
    shifts: Mapping[str, float]
    kinds: tuple[KindRow, ...]
    honest_bound: float


VERIFIER = FileKind("record of a verifier", "batchproof.verifier", 3, VerifierRecord)


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
        subject = oracle.subject
        pack = pack_without_texts(oracle, seed, NUM_PROBES, NUM_CANDIDATES)
        changes = configurations(subject, Texts.of(subject, are_used=False))
        known = tables(subject, pack.probes, pack.unit, changes)
        num = arguments.endpoints // 2
        kinds = _judged(pack, known, {HONEST: num} | dict.fromkeys(KINDS, num // len(KINDS)))
    honest = kinds[HONEST.name]
    bound = share_bound(honest.num - honest.right, honest.num, 0.05)
    shifts = {each.name: each.shift for each in pack.precisions}
    record = VerifierRecord(made_now(), subject.name, pack.unit, shifts, (*kinds.values(),), bound)
    write_result(VERIFIER, record, _page, output, "verifier", arguments.endpoints >= 1_000)
    return int(honest.right < honest.num)


def _page(record: VerifierRecord) -> str:
    return page("verifier", record=record, quantile=_quantile, alpha=ALPHA, requests=REQUESTS)


def _quantile(rows: Counted, share: float, of: int) -> int | str:
    return sorted(each[of] for each in rows)[math.ceil(share * len(rows)) - 1] if rows else "-"


def _judged(pack: ProbePack, known: Tables, counts: Mapping[Kind, int]) -> dict[str, KindRow]:
    bar, rows = Progress("endpoints", "endpoint", sum(counts.values())), {}
    ratios = dict[object, tuple[float, ...]]()
    for kind, num in counts.items():
        told: list[tuple[int, int]] = []
        judged, wrong, right = [], [], 0
        for number in range(num):
            endpoint = Endpoint(kind, number, pack.probes, known, pack.unit)
            triage = Triage(endpoint, pack, Rule(alpha=ALPHA, seed=number), is_ours=False)
            triage.evidence.known_ratios = ratios  # all endpoints are asked the same
            found = triage.decide(kind.name)
            if triage.num_told is not None:
                told.append((triage.num_told, endpoint.num_tokens[triage.num_told]))
            judged.append((found.num_requests, endpoint.num_tokens[found.num_requests]))
            right += found.verdict == kind.verdict
            if found.verdict != kind.verdict or not any(each in found.why for each in kind.causes):
                wrong.append(f"{found.verdict}: {found.why}")
            bar.step()
        rows[kind.name] = KindRow(kind.name, num, right, tuple(told), tuple(judged), tuple(wrong))
    bar.close()
    return rows
