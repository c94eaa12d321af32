"""The functions that each script has of its own, as text: the way from its model to its verdict."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from batchproof.api import Capability
from batchproof.checks.switches import EXACT
from batchproof.repro.checks import NOTHING, Look
from batchproof.repro.failed import Failed
from batchproof.repro.models import untouched

NUM_TRIES = 20  # of what may be a matter of luck
# Rule that looks at all calls -> what it keeps of each, and under which name.
KEPT = {
    "repeats": ("answers", "completions"),
    "prefix": ("served", "(requests, completions, engine.trace[num_before:])"),
}


def load_model(failed: Failed, path: str) -> str:
    model = failed.trial.subject.model
    dtype, device = str(model.dtype), str(model.device)
    attention = untouched(failed.trial.subject).config._attn_implementation
    lines = [f"torch.set_num_threads({torch.get_num_threads()})  # as when it was found"]
    if model.device.type == "cuda":
        lines += [f'torch.cuda.set_device("{device}")', *(each.exact_statement for each in EXACT)]
    lines.append(f"path = {path}")
    if failed.trial.subject.is_embedded:
        lines += [
            "if not path.exists():",
            f'    make = "python -m batchproof checkpoint {_checkpoint(failed)}"',
            '    print(f"CANNOT TELL: there is no model yet: {make} {path}")',
            "    sys.exit(2)",
        ]
    lines += [
        "model = AutoModelForCausalLM.from_pretrained(",
        f'    path, dtype={dtype}, attn_implementation="{attention}"',
        ")",
        f'return model.to(device="{device}", dtype={dtype}).eval().requires_grad_(False)',
    ]
    return _function("load_model() -> PreTrainedModel", "", lines)


def _checkpoint(failed: Failed) -> str:
    """What makes the same weights again: they are made by code from a seed."""
    subject = failed.trial.subject
    return f"{subject.name} --dtype={subject.dtype_name}"


def factory(expression: str) -> str:
    lines = [
        "if len(sys.argv) == 1:",
        f"    return {expression}",
        'module, _, name = sys.argv[1].rpartition(":")',
        "try:",
        '    is_file = module.endswith(".py")',
        "    return getattr(from_file(module) if is_file else importlib.import_module(module), name)",
        "except (ImportError, AttributeError, OSError, ValueError) as error:",
        '    print(f"CANNOT TELL: no engine {sys.argv[1]!r}: {error}")',
        "    sys.exit(2)",
    ]
    told = "Of the engine it was found on, or of the one named on the command line."
    return _function("factory() -> EngineFactory", told, lines)


def give_up(failed: Failed) -> str:
    is_it = failed.rule == "hang"
    told = 'f"REPRODUCED: {FINDING} ({why})"' if is_it else 'f"CANNOT TELL: {why}"'
    lines = [f"print({told}, flush=True)", f"os._exit({1 if is_it else 2})"]
    why = "Leave at once: an engine may catch whatever is raised."
    return _function("give_up(why: str) -> NoReturn", why, lines)


def answer(failed: Failed) -> str:
    lines = _serving(failed, Look(), "calls")
    lines += ["return next(each for each in completions if each.request_id == REQUEST_ID)"]
    head = "answer(model: PreTrainedModel, calls: Sequence[Any]) -> Completion"
    return _function(head, "Of one request in the last of the calls.", lines)


def look_function(failed: Failed, look: Look) -> str:
    """The heart of a script."""
    lines = [*look.before, *_serving(failed, look)]
    if look.compares:
        lines = ["first, second = answer(model, CALLS), answer(model, OTHER_CALLS)"]
    elif failed.rule == "raised":
        lines = ["try:", *_indented(lines), "except (Exception, SystemExit) as error:"]
        lines += ["    traceback.print_exc()", "    return [type(error).__name__]"]
    elif failed.rule != "types" and any("completions" in line for line in lines):
        lines += ["for completion in completions:", '    print(f"got {told(completion)}")']
    if look.wants_trace and "(trace" in look.wrong:
        lines.append("trace = engine.trace[num_before:]")
    seen = look.wrong if look.wrong == NOTHING else f"list({look.wrong})"
    lines += [*look.after, f"wrong: list[str] = {seen}"]
    if look.wants_trace:
        lines.append(f"show({'trace' if '(trace' in look.wrong else 'engine.trace'}, wrong)")
    if failed.has(Capability.CLOSING) and not look.compares and not look.after:
        lines.append("engine.close()")
    told = "What is wrong; nothing once the engine is repaired."
    return _function("look(model: PreTrainedModel) -> list[str]", told, [*lines, "return wrong"])


def _serving(failed: Failed, look: Look, calls: str = "CALLS") -> list[str]:
    """Statements that build an engine and ask it; they leave `completions` and the like of the last."""
    built = "engine = factory()(model, CONFIG)"
    if not any(workload.requests for workload in failed.every_workload):
        return [built]
    body = _asking(failed)
    if look.wants_trace:
        body.insert(0, "num_before = len(engine.trace)")
    name, kept = KEPT.get(failed.rule, ("", ""))
    if kept:
        body.append(f"{name}.append({kept})")
    names = "requests, arrivals, aborts" if failed.is_stepped else "requests"
    begin = [built, *([f"{name} = []"] if kept else []), f"for {names} in {calls}:"]
    return [*begin, *_indented(body)]


def _asking(failed: Failed) -> list[str]:
    """Statements for one call: by `generate`, by steps, or, where a scene has both, by what it says."""
    generate = "completions = list(engine.generate(requests))"
    if failed.rule == "types":
        generate = "completions = engine.generate(requests)"
    step = [
        "events = serve(engine, requests, arrivals, aborts, MAX_STEPS)",
        "completions = assemble(requests, events, aborts)",
    ]
    if not failed.is_stepped:
        return [generate]
    if all(workload.needs_stepping for workload in failed.every_workload):
        return step
    return ["if arrivals is None:", f"    {generate}", "else:", *_indented(step)]


def main(failed: Failed, look: Look) -> str:
    lines = ["model = load_model()", "limit_time(TIME_LIMIT_S)"]
    if look.is_blind:
        lines += [
            "look(model)",
            'print(f"CANNOT TELL whether this is still so: {FINDING}")',
            "return 2",
        ]
        return _function("main() -> int", "", lines)
    lines.append("wrong = look(model)")
    if failed.is_a_race:
        lines[-1:] = [f"for _ in range({NUM_TRIES}):  # it may be a matter of luck"]
        lines += ["    wrong = look(model)", "    if wrong:", "        break"]
    lines += [
        "limit_time(0)",
        'print("", *wrong, sep="\\n")',
        "print(f\"{'REPRODUCED' if wrong else 'not reproduced'}: {FINDING}\")",
        "return int(bool(wrong))",
    ]
    return _function("main() -> int", "", lines)


def _function(head: str, told: str, lines: Iterable[str]) -> str:
    return "\n".join([f"def {head}:", *([f'    """{told}"""'] if told else []), *_indented(lines)])


def _indented(lines: Iterable[str]) -> list[str]:
    return [f"    {line}" for line in lines]
