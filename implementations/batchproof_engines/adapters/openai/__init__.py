"""A server with the OpenAI completions interface, by URL: vLLM, SGLang, transformers serve and others.

    generate -> a thread for each request -> POST {base_url}/completions -> tokens -> completions

`docs/servers.md` explains the options and conventions.
"""

from typing import Any
from urllib.parse import urlsplit

from transformers import PreTrainedModel

from batchproof.api import Engine, EngineConfig
from batchproof.errors import UsageError
from batchproof_engines.adapters.openai.client import PATH, EngineFailed, Refused, Server
from batchproof_engines.adapters.openai.engine import OpenAIEngine
from batchproof_engines.adapters.openai.options import OPTIONS, Options, signature_with

DISCOVERY_TIMEOUT_S = 30.0
INTERFACE = "/v1"


def openai(model: PreTrainedModel, config: EngineConfig, /, **options: Any) -> Engine:
    """Builds an engine for a server. Raises `UsageError` for wrong options, and if no such server
    answers."""
    if not {"base_url", "model"} <= options.keys():
        raise UsageError(
            "openai needs to know its server: openai?base_url=http://HOST:PORT/v1&model=NAME"
        )
    asked = Options.of(options)
    server = Server(asked.base_url, asked.timeout_s, asked.api_key)
    _require_listed(server, asked)
    return OpenAIEngine(server, asked, model, config)


openai.__signature__ = signature_with(OPTIONS)  # type: ignore[attr-defined]


def server_of(url: str, api_key: str | None = None) -> Server:
    """Returns the server, which is not asked yet; without a path in the URL, `/v1` is added. Raises
    `UsageError`."""
    try:
        parts = urlsplit(url)
    except ValueError as error:  # brackets of no IPv6 address
        raise UsageError(f"{url!r} is no URL: {error}") from None
    if not parts.netloc or parts.query or parts.fragment:
        raise UsageError(
            f"{url!r} must be http://HOST:PORT, or with a path; for other options: openai?base_url=..."
        )
    path = "" if parts.path.rstrip("/") else INTERFACE
    return Server(url.rstrip("/") + path, DISCOVERY_TIMEOUT_S, api_key)


def listed_at(server: Server, advice: str) -> list[str]:
    """Returns the names of the server's models. Raises `UsageError`, with the advice, if it does not
    answer or lists none."""
    try:
        names = _listed(server)
    except (EngineFailed, Refused) as error:
        raise UsageError(f"no model is listed there: {error}; if there is one, {advice}") from None
    if not names:
        raise UsageError(f"{server.base_url}/models lists no model; {advice}")
    return names


def text_for(url: str) -> str:
    """Returns `openai?base_url=...&model=...` with the first model that the server lists, and with
    `prompts=words` if that refuses token ids. Raises `UsageError` as `listed_at` does."""
    server = server_of(url)
    base = server.base_url
    names = listed_at(server, f"name it: 'openai?base_url={base}&model=NAME&listed=false'")
    prompts = "" if takes_token_ids(server, names[0]) else "&prompts=words"
    return f"openai?base_url={base}&model={names[0]}{prompts}"


def takes_token_ids(server: Server, model: str) -> bool:
    """Returns whether a prompt of token ids is answered. A server that fails at it is judged later."""
    body = {"model": model, "prompt": [1], "max_tokens": 1, "temperature": 0}
    try:
        server.ask("POST", PATH, body)
    except Refused:
        return False
    except EngineFailed:
        pass
    return True


def _require_listed(server: Server, options: Options) -> None:
    try:
        names = _listed(server)
    except (EngineFailed, Refused) as error:
        if options.listed or (isinstance(error, EngineFailed) and not error.has_answered):
            raise UsageError(f"no such engine there: {error}") from None
        return
    if options.listed and options.model not in names:
        raise UsageError(
            f"{server.base_url}/models lists no model {options.model!r}: there is "
            f"{', '.join(names) or 'none'}; listed=false skips this check"
        )


def _listed(server: Server) -> list[str]:
    answer = server.ask("GET", "/models")
    try:
        return [str(each["id"]) for each in answer["data"]]
    except (TypeError, KeyError):
        return []
