"""Estimates the share of the roofline that a decode step reaches on an H200, from what it launches:

    python -m tests.selftest.device.estimate RECORD.json [LATER.json ...] [--write FILE.md]

A record is one of `python -m tests.selftest.device.steps --json FILE`, with all layers. The arithmetic
is `estimated`; its constants come from others' measurements of this GPU and are none of this engine.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from textwrap import fill
from typing import Any, NamedTuple

from batchproof.models.shapes import SHAPES
from batchproof.records.provenance import command_line

BYTES_PER_S = 4.3e12  # of a copy, read and written
FLOP_PER_S = 7.9e14  # of a large product in bfloat16
CONTEXT_LEN = 1024
WIDTH = 2  # bytes of a bfloat16
LATENCY_S = 3.5e-6  # of a product, besides what it reads
PRODUCT_SHARES = 0.90, 0.60  # of bandwidth and rate that a product of few rows reaches
ATTENTION_S = 4e-6  # of a layer, besides what it reads
SMALL_S = 2.2e-6  # a norm, a rotation, a sum
ARGMAX_S, LOGITS_PER_S = 15e-6, 7.5e11
SHAPES_SHOWN = "llama-8b", "llama-1b", "qwen3-0.6b"
NUM_SEQS = 1, 16, 64, 256
OURS = "triton:_decode_kernel", "triton:_merge_kernel"


class Assumed(NamedTuple):
    """What is guessed of a step's kernels."""

    attention_share: float = 0.82  # of the bandwidth
    gap_s: float = 0.9e-6  # between two kernels of a graph


USUAL, HOPED = Assumed(), Assumed(0.90, 0.4e-6)


@dataclass(frozen=True, slots=True)
class Decode:
    """A decode step: the sizes of its products, by layer, and how many kernels are none of them."""

    num_layers: int
    layer: tuple[tuple[int, int], ...]  # outputs and inputs of each product of a layer
    head: tuple[int, int]
    kv_bytes: int  # of one token in one layer
    num_small: int
    num_launches: int  # without the merges of divided rows

    @classmethod
    def of(cls, counted: dict[str, Any]) -> Decode:
        """Takes the record of a shape."""
        config = SHAPES[counted["shape"]].config()
        layers, hidden, inner = config.num_hidden_layers, config.hidden_size, config.intermediate_size
        if counted["num_layers"] != layers:
            raise ValueError(f"{counted['num_layers']} layers of {layers} are counted")
        launched = counted["steps"]["decode, captured"]["replayed"]
        num_products = launched["mm"] // layers
        if num_products not in (4, 7):
            raise ValueError(f"{num_products} products a layer, but must be 7, or 4 if they are fused")
        queries, keys = (
            num * config.head_dim for num in (config.num_attention_heads, config.num_key_value_heads)
        )
        apart = ((queries,), (keys,), (keys,), (inner,), (inner,))
        together = ((queries, keys, keys), (inner, inner))
        common = together if num_products == 4 else apart
        products = (*((sum(each), hidden) for each in common), (hidden, queries), (hidden, inner))
        attending = sum(launched.get(name, 0) for name in OURS)
        num_small = sum(launched.values()) - launched["mm"] - attending
        num_launches = num_small + launched["mm"] + layers
        head = (config.vocab_size, hidden)
        return cls(layers, products, head, 2 * keys * WIDTH, num_small, num_launches)


def product_s(size: tuple[int, int], num_rows: int) -> float:
    """Returns the duration of a product of so many rows in seconds."""
    num_out, num_in = size
    num_bytes = WIDTH * (num_out * num_in + num_rows * (num_out + num_in))
    reading, multiplying = PRODUCT_SHARES
    flop = 2 * num_rows * num_out * num_in
    return LATENCY_S + max(num_bytes / (reading * BYTES_PER_S), flop / (multiplying * FLOP_PER_S))


def estimated(decode: Decode, num_seqs: int, assumed: Assumed) -> tuple[float, float]:
    """Returns the estimated and the least duration of a step in seconds."""
    weights = sum(out * into for out, into in (*decode.layer * decode.num_layers, decode.head))
    kv_bytes = num_seqs * CONTEXT_LEN * decode.kv_bytes
    num_bytes = WIDTH * weights + kv_bytes * decode.num_layers
    least_s = max(num_bytes / BYTES_PER_S, 2 * num_seqs * weights / FLOP_PER_S)
    attention_s = ATTENTION_S + kv_bytes / (assumed.attention_share * BYTES_PER_S)
    attention_s += SMALL_S + assumed.gap_s if num_seqs < 64 else 0  # rows are divided, and merged
    layer_s = sum(product_s(size, num_seqs) for size in decode.layer) + attention_s
    head_s = product_s(decode.head, num_seqs) + ARGMAX_S + num_seqs * decode.head[0] / LOGITS_PER_S
    rest_s = decode.num_small * SMALL_S + decode.num_launches * assumed.gap_s
    return decode.num_layers * layer_s + head_s + rest_s, least_s


def rows(path: Path, assumed: Assumed) -> Iterator[str]:
    """Yields the lines of a record's table."""
    counted = {each["shape"]: each for each in json.loads(path.read_text())["kernels"]}
    share, gap_us = assumed.attention_share, assumed.gap_s * 1e6
    yield f"`{path.name}`, attention at {share:.0%} of the bandwidth, gaps of {gap_us:.1f} us:\n"
    yield "| | kernels in a step | " + " | ".join(f"batch of {num}" for num in NUM_SEQS) + " |"
    yield "|---|---|" + "---|" * len(NUM_SEQS)
    for shape in SHAPES_SHOWN:
        decode, cells = Decode.of(counted[shape]), []
        for num_seqs in NUM_SEQS:
            step_s, least_s = estimated(decode, num_seqs, assumed)
            cells.append(f"{least_s / step_s:.0%} ({step_s * 1e3:.2f} of {least_s * 1e3:.2f} ms)")
        launches = sum(counted[shape]["steps"]["decode, captured"]["replayed"].values())
        yield f"| {shape} | {launches} | {' | '.join(cells)} |"


ARITHMETIC = f"""
A step takes the sum of its kernels and of the gaps between them. A product takes
{LATENCY_S * 1e6:.1f} us and the time of reading its weights and rows at {PRODUCT_SHARES[0]:.0%} of
{BYTES_PER_S / 1e12:.1f} TB/s, or of multiplying at {PRODUCT_SHARES[1]:.0%} of
{FLOP_PER_S / 1e12:.0f} TFLOP/s if that is longer. A layer's attention takes
{ATTENTION_S * 1e6:.0f} us and the time of reading {CONTEXT_LEN} keys and values of each sequence at a
share of the bandwidth; below 64 sequences rows are divided, and merged by one kernel more. Any other
kernel takes {SMALL_S * 1e6:.1f} us, choosing a token {ARGMAX_S * 1e6:.0f} us and its logits at
{LOGITS_PER_S:.2g} a second. The least time reads all weights, but for the embedding, and the keys and
values once at {BYTES_PER_S / 1e12:.1f} TB/s; all are bfloat16. The last table says what better
attention, and kernels that start while those before them end (`backend=triton_pdl`), would be worth if
they did what others report of theirs.
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("records", nargs="+", type=Path, metavar="RECORD.json")
    parser.add_argument("--write", type=Path, metavar="FILE", help="write it there as well")
    asked = parser.parse_args()
    cases = [*((each, USUAL) for each in asked.records), (asked.records[-1], HOPED)]
    if asked.write and not asked.write.parent.is_dir():
        parser.error(f"--write {asked.write}: there is no folder {asked.write.parent}")
    try:
        tables = "\n\n".join("\n".join(rows(*each)) for each in cases)
    except (OSError, ValueError, LookupError, TypeError) as error:
        parser.error(
            f"a record must be what `tests.selftest.device.steps --json FILE` writes of the shapes "
            f"{', '.join(SHAPES_SHOWN)} with all layers: {type(error).__name__}: {error}"
        )
    command = command_line("python", "-m", "tests.selftest.device.estimate")
    arithmetic = fill(" ".join(ARITHMETIC.split()), 110)
    head = "# How near a decode step comes to the roofline of an H200: an estimate, not a measurement"
    text = f"{head}\n\nMade by `{command}`.\n\n{arithmetic}\n\n{tables}\n"
    print(text)
    if asked.write:
        asked.write.write_text(text)


if __name__ == "__main__":
    main()
