"""The findings of a dry run as values, and their rendering as text."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

Launches = Mapping[str, int]  # how often each kernel or operator was launched


@dataclass(frozen=True, slots=True)
class Problem:
    """An operation that a GPU would reject or wait for."""

    what: str
    where: str  # file:line, the innermost of the engine, the harness or transformers
    in_capture: bool

    def __str__(self) -> str:
        return f"{'in a capture: ' if self.in_capture else ''}{self.what}, at {self.where}"


@dataclass(frozen=True, slots=True)
class Step:
    """What one step launched on the device."""

    phase: str  # "build", or "decode" or "prompt": whether a row had more than one token
    replayed: Launches  # by CUDA graphs
    eager: Launches  # one after the other, by the host
    num_captures: int  # a step that captures also launches warm-ups
    problems: Mapping[Problem, int]

    @property
    def num_replayed(self) -> int:
        return sum(self.replayed.values())

    @property
    def num_eager(self) -> int:
        return sum(self.eager.values())


@dataclass(frozen=True, slots=True)
class Report:
    """An engine's build, counted as the first step, and its steps over a small workload."""

    shape: str
    backend: str
    num_layers: int
    steps: tuple[Step, ...]

    @property
    def num_captures(self) -> int:
        return sum(each.num_captures for each in self.steps)

    @property
    def problems(self) -> Mapping[Problem, int]:
        return sum((Counter(each.problems) for each in self.steps), Counter[Problem]())

    def usual(self, phase: str, *, has_graph: bool) -> Step | None:
        """Returns the phase's step with the median number of launches, excluding captures."""
        steps = [
            each
            for each in self.steps
            if each.phase == phase and not each.num_captures and bool(each.replayed) == has_graph
        ]
        steps.sort(key=lambda each: each.num_replayed + each.num_eager)
        return steps[len(steps) // 2] if steps else None


COLUMNS: Mapping[str, Callable[[Report], Step | None]] = {
    "decode, captured": lambda report: report.usual("decode", has_graph=True),
    "decode, eager": lambda report: report.usual("decode", has_graph=False),
    "prompt, captured": lambda report: report.usual("prompt", has_graph=True),
    "prompt, eager": lambda report: report.usual("prompt", has_graph=False),
}


def text_of(reports: Sequence[Report]) -> str:
    lines = ["Kernels a step: replayed by a graph + launched by the host", ""]
    lines.append(_row("shape", "backend", "layers", *COLUMNS, "captures"))
    for report in reports:
        cells = [_launches(find(report)) for find in COLUMNS.values()]
        named = report.shape, report.backend, report.num_layers
        lines.append(_row(*named, *cells, report.num_captures))
    for report in reports:
        lines += [f"{report.shape}, {report.backend}: {line}" for line in problem_lines(report)]
    return "\n".join(lines)


def problem_lines(report: Report) -> list[str]:
    return [f"{count} x {problem}" for problem, count in report.problems.items()]


def _launches(step: Step | None) -> str:
    return "-" if step is None else f"{step.num_replayed} + {step.num_eager}"


def _row(*cells: object) -> str:
    return "  ".join(f"{cell!s:<16}" for cell in cells).rstrip()
