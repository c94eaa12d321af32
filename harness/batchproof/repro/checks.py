"""Which functions of `looking.py` and `rules.py` show a failure again, and with what."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable
from dataclasses import dataclass, field

from batchproof.api import Capability
from batchproof.checks import environment as world
from batchproof.checks import happened
from batchproof.checks.prefixes import may_share
from batchproof.checks.switches import SWITCHES
from batchproof.repro import literals
from batchproof.repro.failed import Failed

HAPPENED = {
    "preemption": happened.has_preemption,
    "prompt fed in parts": happened.has_chunk,
    "chunked": happened.has_chunk,
    "prefill that shares a step with a decode": happened.has_mixed_step,
    "mixed_step": happened.has_mixed_step,
    "slot that was used again": happened.has_slot_reuse,
    "slot_reuse": happened.has_slot_reuse,
    "prefix hit": happened.has_prefix_hit,
    "prefix_hit": happened.has_prefix_hit,
}

NOTHING = "[]"  # is wrong if it came to an end
GOOD = "[c for c in completions if not c.error]"
DELAY = 'getattr(engine, "scheduling_delay", 0)'  # of the engine that the script is run with


@dataclass(frozen=True)
class Look:
    """How a script looks at what came back."""

    wrong: str = NOTHING  # an expression: lines that tell what is wrong
    constants: dict[str, str] = field(default_factory=dict)  # name -> value, as Python text
    before: tuple[str, ...] = ()  # statements before the engine is built
    after: tuple[str, ...] = ()  # statements once it has served
    wants_trace: bool = False
    compares: bool = False  # the answers to `CALLS` with those to `OTHER_CALLS`
    is_blind: bool = False  # no script can tell


def look_for(failed: Failed) -> Look:
    """Of a rule that is not known here, a blind one."""
    return LOOKS.get(failed.rule, lambda _: Look(is_blind=True))(failed)


def _answers(failed: Failed) -> Look:
    constants = {"EXPECTED": literals.block(map(literals.completion, failed.expected))}
    if not _may_tie(failed):
        return Look("wrong_answers(completions, EXPECTED)", constants)
    error = failed.trial.oracle.error
    constants["ROUNDING"] = f"{2 * failed.trial.oracle.kappa * error.max_abs!r}"
    return Look("wrong_beyond_rounding(model, requests, completions, EXPECTED, ROUNDING)", constants)


def _may_tie(failed: Failed) -> bool:
    """Is some right token so close to the second best that an honest engine may take that?"""
    oracle = failed.trial.oracle
    if oracle.subject.oracle is not None:
        return False
    return any(
        oracle.answer(request.prompt_token_ids, request.max_new_tokens).margin(step)
        <= 2 * oracle.kappa * oracle.error.max_abs
        for request, right in zip(failed.workload.requests, failed.expected, strict=True)
        if right is not None
        for step in range(len(right.token_ids))
    )


def _logits(failed: Failed) -> Look:
    oracle = failed.trial.oracle
    constants = {
        "BOUND": f"{oracle.kappa * oracle.error.max_abs!r}",
        "RMS_BOUND": f"{oracle.kappa * oracle.error.rms!r}",
    }
    return Look("wrong_logits(model, requests, completions, BOUND, RMS_BOUND)", constants)


def _refused(failed: Failed) -> Look:
    ids = [request.request_id for request in failed.workload.requests]
    assert failed.request_id is not None, "the rule is about one request"
    place = max(index for index, each in enumerate(ids) if each == failed.request_id)
    words = [list(group) for group in failed.facts["words"]]
    constants = {"WORDS": "[" + ", ".join(_texts(group) for group in words) + "]"}
    return Look(f"wrong_refusals(completions[{place}], WORDS)", constants)


def _texts(values: list[str]) -> str:
    return f"[{', '.join(map(literals.text, values))}]"


def _relation(failed: Failed) -> Look:
    caps = {
        request.max_new_tokens
        for workload in (failed.workload, failed.other_workloads[-1])
        for request in workload.requests
        if request.request_id == failed.request_id
    }
    oracle, trial = failed.trial.oracle, failed.trial
    is_bitwise = not trial.has_logits or trial.lab.is_bitwise(trial)
    constants = {
        "REQUEST_ID": literals.text(str(failed.request_id)),
        "ALLOWED": "0.0" if is_bitwise else f"{2 * oracle.kappa * oracle.error.max_abs!r}",
    }
    cut = min(caps) if len(caps) > 1 else None
    return Look(f"wrong_differences(first, second, {cut}, ALLOWED)", constants, compares=True)


def _moves(failed: Failed) -> Look:
    constants = {
        "REQUEST_ID": literals.text(str(failed.request_id)),
        "ROUNDING": f"{getattr(failed.error, 'facts', {})['bound']!r}",
    }
    return Look("wrong_equality(first, second, ROUNDING)", constants, compares=True)


def _stream(failed: Failed) -> Look:
    wanted = failed.workload.requests
    bad = [
        each.request_id for index, each in enumerate(wanted) if failed.is_bad(failed.workload, index)
    ]
    return Look("wrong_stream(requests, BAD, events)", {"BAD": _texts(bad)})


def _cancel(failed: Failed) -> Look:
    constants = {"EXPECTED": literals.block(map(literals.completion, failed.expected))}
    wrong = "wrong_cancels(completions, EXPECTED, aborts, events)"
    if not failed.has(Capability.TRACING):
        return Look(wrong, constants)
    after = (
        'afterwards = [Request("afterwards", (2, 7, 1), 2)]  # what is left over shows beside it',
        "serve(engine, afterwards, [0], [], MAX_STEPS)",
    )
    return Look(
        f"[*{wrong}, *wrong_leftovers(engine.trace, 1)]", constants, after=after, wants_trace=True
    )


def _trace(expression: str) -> Callable[[Failed], Look]:
    def look(failed: Failed) -> Look:
        arrivals = failed.workload.arrivals or (0,) * len(failed.workload.requests)
        ordered = sorted(zip(arrivals, range(len(arrivals)), strict=True))
        ids = [failed.workload.requests[index].request_id for _, index in ordered]
        constants = {"ARRIVAL_ORDER": _texts(ids)} if "ARRIVAL_ORDER" in expression else {}
        wrong = expression.format(
            has_token_budget=failed.has(Capability.SCHEDULING),
            can_chunk=failed.has(Capability.CHUNKED_PREFILL),
            can_share=may_share(failed.config, failed.trial.capabilities),
            delay=DELAY,
        )
        return Look(wrong, constants, wants_trace=True)

    return look


def _happened(failed: Failed) -> Look:
    what = failed.facts["what"]
    found = HAPPENED[what]
    slots = ", CONFIG.max_num_seqs" if found is happened.has_slot_reuse else ""
    wrong = f"[] if {found.__name__}(engine.trace{slots}) else [FINDING]"
    return Look(wrong, wants_trace=True)


def _max_steps(failed: Failed) -> Look:
    most = failed.facts["most"]
    return Look(f"[FINDING] if len(engine.trace) > {most} else []", wants_trace=True)


def _mask(failed: Failed) -> Look:
    facts = failed.facts
    constants = {"ROWS": literals.block(map(literals.row, facts["rows"]))}
    return Look(f"wrong_mask(engine.attention_mask(ROWS).tolist(), ROWS, {facts['window']})", constants)


def _world(failed: Failed) -> Look:
    thing = failed.facts["thing"]
    seen = "deepcopy(CALLS)" if thing == "requests" else _expression(thing)
    change = 'f"{str(before)[:200]} -> {str(after)[:200]}"'
    return Look(
        f"[] if before == during == after else [{change}]",
        before=(
            "torch.rand(1)  # so that no seed can hit the state by luck",
            "random.random()",
            f"before = {seen}",
        ),
        after=(f"during = {seen}", *_close(failed), f"after = {seen}"),
    )


def _close(failed: Failed) -> tuple[str, ...]:
    return ("engine.close()",) if failed.has(Capability.CLOSING) else ()


def _expression(thing: str) -> str:
    """How `batchproof.checks.environment` looks at the thing."""
    for switch in SWITCHES:
        if switch.name == thing:
            return switch.place
    source = inspect.getsource(world)
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Dict):
            for key, value in zip(node.keys, node.values, strict=True):
                if isinstance(key, ast.Constant) and key.value == thing:
                    return ast.unparse(value)
    raise KeyError(f"harness/batchproof/checks/environment.py does not look at {thing!r}")


def _repeats(failed: Failed) -> Look:
    calls = "[call[0] for call in CALLS]" if failed.is_stepped else "CALLS"
    return Look(f"wrong_repeats({calls}, answers)")


LOOKS: dict[str, Callable[[Failed], Look]] = {
    "answers": _answers,
    "logits": _logits,
    "refused": _refused,
    "relation": _relation,
    "moves": _moves,
    "stream": _stream,
    "cancel": _cancel,
    "names": _trace("wrong_names(trace, requests)"),
    "positions": _trace("wrong_positions(trace, requests, {can_share})"),
    "prefix": lambda _: Look("wrong_hits(served)", wants_trace=True),
    "limits": _trace("wrong_limits(trace, CONFIG, {has_token_budget})"),
    "first-come": _trace("wrong_turns(trace, ARRIVAL_ORDER)"),
    "decodes": _trace("wrong_decodes(trace, requests, completions, {delay})"),
    "late-ends": _trace("wrong_late_ends(trace, requests, completions, CONFIG, {delay})"),
    "refill": _trace("wrong_slots(trace, requests, CONFIG, {can_chunk})"),
    "accounting": _trace("wrong_blocks(trace, requests, CONFIG)"),
    "ends": _trace(f"wrong_ends(trace, requests, {GOOD}, MAX_STEPS, {{delay}})"),
    "happened": _happened,
    "max-steps": _max_steps,
    "mask": _mask,
    "world": _world,
    "types": lambda _: Look("wrong_types(completions)"),
    "repeats": _repeats,
    "raised": lambda _: Look(),
    "hang": lambda _: Look(),
}
