"""An engine text for a server of which only the URL is known."""

from __future__ import annotations

from contextlib import closing
from urllib.parse import urlsplit

from batchproof.errors import UsageError
from batchproof_engines.adapters.openai.client import Server
from batchproof_engines.adapters.openai.failures import EngineFailed, Refused

TIMEOUT_S = 30.0
INTERFACE = "/v1"


def engine_at(url: str) -> str:
    """Returns `openai?base_url=...&model=...` with the first model that the server lists; without a
    path in the URL, `/v1` is added. Raises `UsageError` if it does not answer, or lists none."""
    parts = urlsplit(url)
    if not parts.netloc or parts.query or parts.fragment:
        raise UsageError(
            f"{url!r} must be http://HOST:PORT, or with a path; for other options: openai?base_url=..."
        )
    base = url.rstrip("/")
    if not parts.path.rstrip("/"):
        base += INTERFACE
    try:
        with closing(Server(base, TIMEOUT_S).exchange("GET", "/models")) as exchange:
            answer = exchange.read()
        name = str(answer["data"][0]["id"])
    except (EngineFailed, Refused) as error:
        raise UsageError(f"no such engine there: {error}") from None
    except (TypeError, KeyError, IndexError):
        raise UsageError(
            f"{base}/models lists no model, so it must be named: openai?base_url=..."
        ) from None
    return f"openai?base_url={base}&model={name}"
