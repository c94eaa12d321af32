"""Pages in Markdown: a template of `pages/` for each kind, filled with a record."""

from collections.abc import Iterable
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from batchproof.records.texts import header, line


def page(kind: str, **values: object) -> str:
    """Returns the page of this kind. Raises `jinja2.UndefinedError` for a value that is missing."""
    return ENVIRONMENT.get_template(f"{kind}.md.jinja").render(values)


def by_seed(values: Iterable[object]) -> str:
    """Returns the value once if all are equal, else one for each seed."""
    texts = [str(value or "-") for value in values]
    return "/".join(dict.fromkeys(texts) if len(set(texts)) == 1 else texts) or "-"


def function_name(test: str | None) -> str:
    """Returns a test function without its file."""
    return (test or "no test").rpartition("::")[2]


ENVIRONMENT = Environment(
    loader=FileSystemLoader(Path(__file__).with_name("pages")),
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
    autoescape=False,
)
ENVIRONMENT.filters |= {
    "head": lambda cells: "\n".join(header(*cells)),
    "row": lambda cells: line(*map(str, cells)),
    "by_seed": by_seed,
    "function_name": function_name,
    "indented": lambda text: "\n".join(f"    {each}" for each in text.splitlines()),
}
