"""Values as Python text that a person can read: positional, short, and within the line length."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import fields

from batchproof.api import (
    Completion,
    EngineConfig,
    Request,
    RowRecord,
)

WIDTH = 100
TOKENS_A_LINE = 18


def text(value: str) -> str:
    """In double quotes; JSON's escapes are Python's, but for surrogates, which `repr` can write."""
    quoted = json.dumps(value, ensure_ascii=False)
    return quoted if quoted.isprintable() else repr(value)


def tokens(token_ids: Sequence[int], indent: int) -> str:
    """A tuple; a repeated token as such; a long one over several lines."""
    if len(token_ids) > TOKENS_A_LINE and len(set(token_ids)) == 1:
        return f"({token_ids[0]},) * {len(token_ids)}"
    if len(token_ids) <= TOKENS_A_LINE:
        return repr(tuple(token_ids))
    pad = " " * indent
    lines = [
        f"{pad}    {', '.join(map(str, token_ids[i : i + TOKENS_A_LINE]))},\n"
        for i in range(0, len(token_ids), TOKENS_A_LINE)
    ]
    return f"(\n{''.join(lines)}{pad})"


def request(each: Request, indent: int) -> str:
    eos = f", frozenset({{{', '.join(map(str, sorted(each.eos_token_ids)))}}})"
    return (
        f"Request({text(each.request_id)}, {tokens(each.prompt_token_ids, indent)}, "
        f"{each.max_new_tokens}{eos if each.eos_token_ids else ''})"
    )


def completion(each: Completion | None) -> str:
    if each is None:
        return "None"
    reason = f"FinishReason.{each.finish_reason.name}"
    return f"Completion({text(each.request_id)}, {tokens(each.token_ids, 4)}, {reason})"


def row(each: RowRecord) -> str:
    return (
        f"RowRecord({text(each.request_id)}, {each.context_len}, {each.query_len}, {each.is_sampled})"
    )


def config(each: EngineConfig) -> str:
    changed = [
        f"{field.name}={getattr(each, field.name)!r}"
        for field in fields(EngineConfig)
        if getattr(each, field.name) != field.default
    ]
    line = f"EngineConfig({', '.join(changed)})"
    return line if len(line) < WIDTH - 10 else "EngineConfig(\n    " + ",\n    ".join(changed) + ",\n)"


def block(items: Iterable[str], indent: int = 0) -> str:
    """A list, one item a line."""
    pad = " " * indent
    lines = [f"{pad}    {item},\n" for item in items]
    return f"[\n{''.join(lines)}{pad}]" if lines else "[]"
