"""The colours of page and pictures, light and dark, and their font."""

from __future__ import annotations

# name -> (light, dark)
THEME = {
    "ink": ("#1f2328", "#e6edf3"),
    "faint": ("#59636e", "#9aa4af"),
    "grid": ("#dce1e6", "#30363d"),
    "page": ("#f6f8fa", "#0d1117"),
    "paper": ("#ffffff", "#161b22"),
    "idle": ("#f3f4f6", "#1c222a"),
    "hatch": ("#b6bdc6", "#4d5661"),
    "pad": ("#7d8590", "#8b949e"),
    "good": ("#1a7f37", "#56d364"),
    "warn": ("#8a5a00", "#e3b341"),
    "bad": ("#c1121f", "#ff7b72"),
    # Engines: Paul Tol's "bright" scheme, distinct with any kind of colour vision.
    "s0": ("#4477aa", "#6fa8dc"),
    "s1": ("#ee6677", "#ff8793"),
    "s2": ("#228833", "#4fb866"),
    "s3": ("#b8a630", "#dccb5a"),
    "s4": ("#3fa9cc", "#7fd6f2"),
    "s5": ("#aa3377", "#db6fa8"),
    # Requests: his "muted" scheme; its dark colours are lighter in the dark theme.
    "r0": ("#332288", "#6d5fd0"),
    "r1": ("#88ccee", "#88ccee"),
    "r2": ("#cc6677", "#cc6677"),
    "r3": ("#ddcc77", "#ddcc77"),
    "r4": ("#117733", "#2b9a50"),
    "r5": ("#aa4499", "#bb55aa"),
    "r6": ("#44aa99", "#44aa99"),
    "r7": ("#882255", "#a83a70"),
    "r8": ("#999933", "#999933"),
}
NUM_SERIES = 6
NUM_REQUEST_COLOURS = 9
FONTS = "system-ui, 'Segoe UI', Helvetica, Arial, sans-serif"


def in_page(name: str) -> str:
    """Returns the CSS variable that holds a colour, so that one picture serves both themes."""
    return f"var(--{name})"


def on_white(name: str) -> str:
    """Returns the colour of the light theme, for a separate file: not every viewer knows variables."""
    return FONTS if name == "sans" else THEME[name][0]


def ink_on(name: str) -> str:
    """Returns white on dark colours, else black (perceived brightness after ITU-R BT.601)."""
    red, green, blue = (int(THEME[name][0][i : i + 2], 16) for i in (1, 3, 5))
    return "#ffffff" if 0.299 * red + 0.587 * green + 0.114 * blue < 140 else "#1f2328"
