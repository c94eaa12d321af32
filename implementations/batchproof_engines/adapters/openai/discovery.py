"""An engine text for a server of which only the URL is known."""

from __future__ import annotations

from urllib.parse import urlsplit

from batchproof.errors import UsageError
from batchproof_engines.adapters.openai.client import PATH, EngineFailed, Refused, Server

TIMEOUT_S = 30.0
INTERFACE = "/v1"


def engine_at(url: str) -> str:
    """Returns `openai?base_url=...&model=...` with the first model that the server lists, and with
    `prompts=words` if that refuses token ids; without a path in the URL, `/v1` is added. Raises
    `UsageError` if it does not answer, or lists none."""
    parts = urlsplit(url)
    if not parts.netloc or parts.query or parts.fragment:
        raise UsageError(
            f"{url!r} must be http://HOST:PORT, or with a path; for other options: openai?base_url=..."
        )
    base = url.rstrip("/")
    if not parts.path.rstrip("/"):
        base += INTERFACE
    server = Server(base, TIMEOUT_S)
    named = f"name it: 'openai?base_url={base}&model=NAME&listed=false'"
    try:
        name = str(server.ask("GET", "/models")["data"][0]["id"])
    except (EngineFailed, Refused) as error:
        raise UsageError(f"no model is listed there: {error}; if there is one, {named}") from None
    except (TypeError, KeyError, IndexError):
        raise UsageError(f"{base}/models lists no model; {named}") from None
    prompts = "" if _takes_token_ids(server, name) else "&prompts=words"
    return f"openai?base_url={base}&model={name}{prompts}"


def _takes_token_ids(server: Server, model: str) -> bool:
    """Returns whether a prompt of token ids is answered. A server that fails at it is judged later."""
    body = {"model": model, "prompt": [1], "max_tokens": 1, "temperature": 0}
    try:
        server.ask("POST", PATH, body)
    except Refused:
        return False
    except EngineFailed:
        pass
    return True
