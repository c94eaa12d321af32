"""Compares the results of a set of kernels with a slow sum in float64, and checks that they write
their own cells only."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from batchproof_paged.kernels import (
    DecodeRows,
    Kernels,
    LayerPass,
    PrefillRows,
    Span,
)
from tests.gpu.cases import TRASH_BLOCK, Case
from tests.selftest.paged.rehearsal import attend_slowly

UNTOUCHED = 7.0  # the content of cells that must not be written
IS_INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
FLOAT32 = torch.finfo(torch.float32).eps / 2  # the relative error of rounding to the nearest


@dataclass
class Findings:
    """The findings; `worst` is the largest error of each result, relative to that of rounding."""

    num_cases: int = 0
    bad: list[str] = field(default_factory=list)
    worst: dict[str, float] = field(default_factory=dict)

    def add(self, kind: str, share: float, case: Case) -> None:
        share = share if math.isfinite(share) else math.inf
        key = f"{kind} {str(case.dtype).removeprefix('torch.')}"
        self.worst[key] = max(self.worst.get(key, 0.0), share)
        if share > 1:
            self.blame(f"{kind} is off by {share:.2g} times what rounding explains", case)

    def blame(self, what: str, case: Case) -> None:
        self.bad.append(f"BAD {what}; {case.name}")
        print(self.bad[-1], flush=True)


def bound(case: Case, query: Tensor, keys: Tensor, values: Tensor) -> float:
    """Returns the largest error that rounding explains.

    Weights and results are rounded to the dtype once each. A score is summed in float32: its errors, a
    random walk, amount to about one rounding of the product of both lengths. The relative error of a
    weight is twice that of the scores.
    """
    norms = float(query.double().norm(dim=-1).max() * keys.double().norm(dim=-1).max())
    scores = FLOAT32 * norms * case.form.scaling
    once = torch.finfo(case.dtype).eps / 2 * (2 if IS_INTERPRETED else 1)  # the interpreter cuts off
    return (2 * once + 2 * scores + 16 * FLOAT32) * max(1.0, float(values.abs().max()))


def check(findings: Findings, kernels: Kernels, case: Case) -> None:
    findings.num_cases += 1
    for each in (_check_decode, _check_prefill):
        each(findings, kernels, case)


def _check_decode(findings: Findings, kernels: Kernels, case: Case) -> None:
    """Feeds each sequence's last token; of the rows after them, two are padding and one is foreign."""
    num, shape = len(case.lanes), case.shape
    expected_cache = _copies(case)
    for sequence, seq_len in enumerate(case.seq_lens):
        case.forget(sequence, seq_len - 1)
    query = case.random(num + 3, shape.num_heads, shape.qk_dim)
    key = torch.cat([*(k[-1:] for k in case.keys), case.random(3, shape.num_kv_heads, shape.qk_dim)])
    value = torch.cat([*(v[-1:] for v in case.values), case.random(3, shape.num_kv_heads, shape.v_dim)])
    trash_lane = len(case.tables) - 1
    rows = DecodeRows(
        torch.tensor([*case.lanes, trash_lane, trash_lane], device=case.device),
        torch.tensor([*case.seq_lens, 0, 0], device=case.device),
        case.tables.shape[1],
    )
    out = _untouched(case, num + 3)
    q, k, v = (case.as_a_model_makes_it(each) for each in (query, key, value))
    kernels.decode(LayerPass(q, k, v, case.cache, case.tables, case.form, out), rows)
    for row in range(num):
        _hold(findings, "decode", case, row, query[row : row + 1], out[row : row + 1])
    if not bool(out[num : num + 2].isfinite().all()):
        findings.blame("decode leaves what is not finite in a padding row", case)
    if not bool((out[num + 2] == UNTOUCHED).all()):
        findings.blame("decode writes a row that is not its own", case)
    _hold_cache(findings, "decode", case, expected_cache)


def _check_prefill(findings: Findings, kernels: Kernels, case: Case) -> None:
    """Feeds the last tokens of each sequence, perhaps none of one of them, after foreign rows and
    before padding."""
    expected_cache = _copies(case)
    first, num_padding = case.choice.randint(0, 3), case.choice.randint(0, 3)
    spans, start = [], first
    for lane, seq_len in zip(case.lanes, case.seq_lens, strict=True):
        query_len = case.choice.choice((seq_len, case.choice.randint(0, seq_len)))
        spans.append(Span(lane, start, query_len, seq_len - query_len))
        start += query_len
    for sequence, span in enumerate(spans):
        case.forget(sequence, span.context_len)
    fed = [case.slots[row][span.context_len :] for row, span in enumerate(spans)]
    trash = [TRASH_BLOCK] * num_padding
    slots = [slot for each in fed for slot in each] + trash
    rows = PrefillRows(
        lanes=torch.tensor(case.lanes, device=case.device),
        context_lens=torch.tensor([span.context_len for span in spans], device=case.device),
        starts=torch.tensor([*(span.start for span in spans), start], device=case.device),
        num_columns=case.tables.shape[1],
        slots=torch.tensor(slots, dtype=torch.int64, device=case.device),
        spans=tuple(spans),
    )
    if not slots or any(span.query_len == 0 for span in spans):
        return  # the step feeds nothing, and the host launches no empty rows
    query = case.random(start + num_padding, case.shape.num_heads, case.shape.qk_dim)
    key, value = (
        torch.cat([each[0].new_ones(first, *each[0].shape[1:]), *new, *padding])
        for each, new, padding in (_fed_tokens(case, spans, each, num_padding) for each in (0, 1))
    )
    out = _untouched(case, len(query))
    out[start:] = float("nan")
    q, k, v = (case.as_a_model_makes_it(each) for each in (query, key, value))
    kernels.prefill(LayerPass(q, k, v, case.cache, case.tables, case.form, out), rows)
    for row, span in enumerate(spans):
        own = slice(span.start, span.start + span.query_len)
        if span.query_len:
            _hold(findings, "prefill", case, row, query[own], out[own])
    if not bool((out[:first] == UNTOUCHED).all()):
        findings.blame("prefill writes a row that is not its own", case)
    _hold_cache(findings, "prefill", case, expected_cache)


def _fed_tokens(
    case: Case, spans: Sequence[Span], which: int, num_padding: int
) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
    """Returns all keys (0) or values (1), those that are fed, and padding."""
    of_all = (case.keys, case.values)[which]
    new = [tokens[span.context_len :] for tokens, span in zip(of_all, spans, strict=True)]
    return of_all, new, [of_all[0].new_ones(num_padding, *of_all[0].shape[1:])]


def _untouched(case: Case, num_rows: int) -> Tensor:
    shape = (num_rows, case.shape.num_heads, case.shape.v_dim)
    return torch.full(shape, UNTOUCHED, dtype=case.dtype, device=case.device)


def _hold(findings: Findings, kind: str, case: Case, sequence: int, query: Tensor, out: Tensor) -> None:
    keys, values, form = case.keys[sequence], case.values[sequence], case.form
    on_cpu = replace(form, sinks=None if form.sinks is None else form.sinks.cpu())
    error = float((out.cpu().double() - attend_slowly(query, keys, values, on_cpu)).abs().max())
    findings.add(kind, error / bound(case, query, keys, values), case)


def _copies(case: Case) -> tuple[Tensor, Tensor]:
    return case.cache.keys.clone(), case.cache.values.clone()


def _hold_cache(findings: Findings, kind: str, case: Case, expected: tuple[Tensor, Tensor]) -> None:
    """Checks, bit for bit, that what was fed is stored and nothing else but the trash block changed."""
    for name, now, then in zip(
        ("keys", "values"), (case.cache.keys, case.cache.values), expected, strict=True
    ):
        rest = slice(TRASH_BLOCK + 1, None)
        if not torch.equal(now[rest].nan_to_num(UNTOUCHED), then[rest].nan_to_num(UNTOUCHED)):
            findings.blame(f"{kind} leaves other {name} in the cache than were fed", case)
