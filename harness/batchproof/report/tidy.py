"""matplotlib's SVG without what a page does not need: a fraction of it, and the same to look at."""

from __future__ import annotations

import re

OUTSIDE = re.compile(r"\A.*?<svg[^>]*>|</svg>\s*\Z", re.DOTALL)
UNNEEDED = re.compile(
    r"<!--.*?-->|<metadata>.*?</metadata>|<defs>\s*<style[^>]*>.*?</style>\s*</defs>", re.DOTALL
)
REFERENCE = re.compile(r'(url\(#|href="#)([^")]+)')
ID = re.compile(r' id="([^"]*)"')
STRAIGHT = re.compile(r"[MLz\d\s.-]*")
LINE = re.compile(r"([MLz])\s*(-?[\d.]+)?\s*(-?[\d.]+)?")


def tidy(svg: str) -> str:
    """What is inside the root element."""
    body = UNNEEDED.sub("", OUTSIDE.sub("", svg)).strip()
    body = re.sub(r">\s+<", "><", body).replace("xlink:href", "href")
    body = re.sub(r'="[^"]*"', _rounded, body)
    body = re.sub(r' d="([^"]*)"', lambda match: f' d="{shortened_path(match[1])}"', body)
    body = re.sub(r' transform="rotate\(-0 [^"]*"', "", body)
    return _renumbered(body)


def _renumbered(body: str) -> str:
    """Ids in the order of their use, for matplotlib's change from run to run; unused ones go."""
    numbers: dict[str, int] = {}
    for _, name in REFERENCE.findall(body):
        numbers.setdefault(name, len(numbers))
    body = ID.sub(lambda match: f' id="i{numbers[match[1]]}"' if match[1] in numbers else "", body)
    return REFERENCE.sub(lambda match: f"{match[1]}i{numbers[match[2]]}", body)


def _rounded(attribute: re.Match[str]) -> str:
    """A hundredth of a pixel is enough. Text is no attribute and stays as it is."""
    line = re.sub(r"\s+", " ", attribute[0])
    return re.sub(r"\d+\.\d{3,}", lambda match: f"{float(match[0]):.2f}".rstrip("0").rstrip("."), line)


def shortened_path(path: str) -> str:
    """The same outline in fewer characters: `H` and `V` where a line is level or upright, and one
    line for several that go on the same way. Paths with curves stay as they are."""
    if not STRAIGHT.fullmatch(path):
        return path
    parts: list[tuple[str, float, float]] = []  # command, and where it ends
    for command, x, y in LINE.findall(path):
        part = (command, float(x or 0), float(y or 0))
        if command == "L" and part[1:] == parts[-1][1:]:
            continue
        if command == "L" and len(parts) > 1 and _goes_on(parts[-2], parts[-1], part):
            parts[-1] = part
        else:
            parts.append(part)
    return "".join(_told(before, part) for before, part in zip([None, *parts], parts, strict=False))


def _goes_on(
    start: tuple[str, float, float], middle: tuple[str, float, float], end: tuple[str, float, float]
) -> bool:
    """Level or upright, and in the same direction."""
    if start[0] == "z" or middle[0] != "L":
        return False
    (ax, ay), (bx, by), (cx, cy) = start[1:], middle[1:], end[1:]
    is_level = ay == by == cy and (bx - ax) * (cx - bx) > 0
    is_upright = ax == bx == cx and (by - ay) * (cy - by) > 0
    return is_level or is_upright


def _told(before: tuple[str, float, float] | None, part: tuple[str, float, float]) -> str:
    command, x, y = part
    if command == "z":
        return "z"
    if command == "L" and before is not None and before[0] != "z":
        if y == before[2]:
            return f"H{x:.10g}"
        if x == before[1]:
            return f"V{y:.10g}"
    return f"{command}{x:.10g} {y:.10g}"
