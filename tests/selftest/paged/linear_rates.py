"""What bounds a decode step on this CPU: products of few rows, in the cache and out of it.

    python -m tests.selftest.paged.linear_rates [--threads N]

A kernel that reads the next weights while it computes takes the larger of two times: the product in the
cache, and reading the weights. One that does not takes their sum.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from time import perf_counter

import torch
from torch import Tensor

from batchproof.records.provenance import command_line, made_now
from batchproof_paged.packing_choice import NATIVE, ONEDNN, PLAIN, multiply, pack, works

IN, OUT = 768, 3072  # of the up projection of GPT-2
CACHED = 256  # of its outputs: 0.8 MB
COPIES = 60  # 566 MB, beyond every cache
ROWS = (1, 4, 8, 16, 32)
ROUNDS = 7


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.selftest.paged.linear_rates", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("--threads", type=int, default=1, help="threads to compute with (1)")
    asked = parser.parse_args(arguments)
    if asked.threads < 1:
        parser.error(f"--threads is {asked.threads}, but must be at least 1")
    torch.set_num_threads(asked.threads)
    for line in page():
        print(line, flush=True)


def page() -> Iterator[str]:
    """Yields the lines of a page in Markdown."""
    yield "# Products of few rows on this CPU"
    yield ""
    yield from made_now(command_line("python", "-m", "tests.selftest.paged.linear_rates")).lines()
    weights = [torch.randn(OUT, IN) for _ in range(COPIES)]
    reading = best(lambda: [each.sum() for each in weights]) / COPIES
    rate = f"{1000 * reading:.2f} ms, {weights[0].nbytes / reading / 1e9:.1f} GB/s"
    yield f"* {torch.get_num_threads()} thread(s)"
    yield f"* reading the weight once: {rate}"
    yield ""
    yield f"Milliseconds of one product with a weight ({OUT}, {IN}) in float32, best of {ROUNDS}."
    yield ""
    yield "| kernel | rows | in the cache | out of it | cache + reading |"
    yield "| --- | --- | --- | --- | --- |"
    for kernel in (PLAIN, *filter(partial(works, dtype=torch.float32), (ONEDNN, NATIVE))):
        for num_rows in ROWS:
            cached = time_of(kernel, num_rows, [weights[0][:CACHED].clone()]) * OUT / CACHED
            streamed = time_of(kernel, num_rows, weights)
            cells = (1000 * each for each in (cached, streamed, cached + reading))
            yield f"| {kernel} | {num_rows} | " + " | ".join(f"{each:.2f}" for each in cells) + " |"


def time_of(kernel: str, num_rows: int, weights: Sequence[Tensor]) -> float:
    """Returns the seconds of a product of `num_rows` rows with one of the weights."""
    rows = torch.randn(num_rows, IN)
    copies = [each if kernel == PLAIN else pack(kernel, each) for each in weights]
    turns = -(-COPIES // len(weights))

    def products() -> None:
        for weight, copy in [*zip(weights, copies, strict=True)] * turns:
            if kernel == PLAIN:
                torch.nn.functional.linear(rows, weight)
            else:
                multiply(kernel, rows, copy, None, len(weight))

    return best(products) / turns / len(weights)


def best(work: Callable[[], object]) -> float:
    """Returns the seconds of the fastest of several runs."""
    times = []
    for _ in range(ROUNDS):
        began = perf_counter()
        work()
        times.append(perf_counter() - began)
    return min(times)


if __name__ == "__main__":
    main()
