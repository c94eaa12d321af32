"""The options that all campaigns have."""

from __future__ import annotations

import argparse

from batchproof.cli import choices

PROCESSES, RAY = "processes", "ray"


def add_options(
    parser: argparse.ArgumentParser,
    seed: int | None = None,
    time_limit: tuple[float, str] | None = None,
) -> None:
    """Adds `--shard`, `--anew`, `--runner` and the common options; with defaults given, `--seed` and
    `--time-limit`, whose second value says of what.
    """
    if seed is not None:
        parser.add_argument(
            "--seed",
            type=choices.whole,
            default=seed,
            metavar="S",
            help="seed of everything drawn (default: %(default)s)",
        )
    if time_limit is not None:
        limit, what = time_limit
        parser.add_argument(
            "--time-limit",
            type=choices.seconds,
            default=limit,
            metavar="S",
            help=f"seconds after which {what} (default: %(default)g)",
        )
    choices.add_shard(parser)
    parser.add_argument(
        "--anew",
        action="store_true",
        help="forget the journals of the same question and code, which are otherwise continued",
    )
    parser.add_argument(
        "--runner",
        choices=(PROCESSES, RAY),
        default=PROCESSES,
        help="where the workers are: on this machine, or in a cluster of Ray (default: %(default)s)",
    )
    choices.add_common(parser)
