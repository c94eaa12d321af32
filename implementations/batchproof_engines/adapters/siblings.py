"""Requests that an engine is asked for as one, with `n`: they share all but their ids.

The programs of released engines load this file by its path: it uses the standard library only.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

SEVERAL = "answers of a request for several"  # the counter


def siblings_in(
    asked: Sequence[Mapping[str, Any]], most: int, is_greedy_alone: bool = False
) -> list[list[int]]:
    """Returns the places of those that ask for the same in groups of up to `most`, in the order of
    their firsts. Where they have a seed, each has the next: vLLM and llama.cpp's server give such seeds
    to the answers of one request. `is_greedy_alone`: those that draw nothing stay by themselves."""
    groups: list[list[int]] = []
    open_to: dict[str, list[int]] = {}  # what the next of a group asks for
    for place, settings in enumerate(asked):
        group = open_to.pop(_text(settings), [])
        if not group:
            groups.append(group)
        group.append(place)
        is_alone = is_greedy_alone and not settings.get("temperature")
        if len(group) < most and not is_alone:
            seed = settings.get("seed")
            open_to[_text(settings if seed is None else {**settings, "seed": seed + 1})] = group
    return groups


def _text(settings: Mapping[str, Any]) -> str:
    return json.dumps(settings, sort_keys=True)
