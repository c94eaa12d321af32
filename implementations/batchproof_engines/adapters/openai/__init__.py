"""A server with the OpenAI completions interface, by URL: vLLM, SGLang, transformers serve and others.

    generate -> a thread for each request -> POST {base_url}/completions -> tokens -> completions

The server serves a checkpoint of its own, which must be that of `--model`: `python -m batchproof
checkpoint MODEL DIR` writes the suite's models to disk with a tokenizer (`adapters/word_tokenizer.py`).
Its limits are set where it is started: of `EngineConfig` only `max_model_len` is kept, by this adapter.

Conventions:

* Greedy decoding is temperature 0. A server that stops at an EOS of its model must be told not to, by
  `extra={"ignore_eos":true}` where it knows that option.
* Where EOS ids are applied by the client, an answer that is cut at one is STOP. Every other reason is
  the server's, as it is: one that says "length" of an EOS on the cap is told so.
* An EOS that the server counts but omits from its answer is put in, if the server names it or only
  one was asked for.
* Bad requests are sent as they are. 400, 413, 422 and similar are the server's refusal, in its words; a
  5xx is a failure of the server, and so is any status that says nothing about the request: 401, 403,
  404, 405, 407, 408, 429.
* The interface has no request ids. Of two requests of one call with the same id, the later is refused
  here, as is an id that is live. So is a request that only `config.max_model_len` forbids and, with
  prompts as words, a token outside the vocabulary.
* Parameters of a request (`SamplingParams`) are sent if the options say that the server takes them, and
  refused here, by name, if not.
* There are no logits and no trace: the interface has neither.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection
from typing import Any

from transformers import PreTrainedModel

from batchproof.api import Engine, EngineConfig, Limits
from batchproof.errors import UsageError
from batchproof_engines.adapters.openai.client import EngineFailed, Refused, Server
from batchproof_engines.adapters.openai.dialect import CLIENTS, SAMPLING, Dialect
from batchproof_engines.adapters.openai.engine import OpenAIEngine, RequestFilter, SteppingOpenAIEngine

PROMPTS = ("ids", "words")
TOKENS = ("auto", "ids", "logprobs", "words")
EOS = ("client", "stop_token_ids", "generation_config")


def openai(
    model_under_test: PreTrainedModel,
    config: EngineConfig,
    *,
    base_url: str | None = None,
    model: str | None = None,
    prompts: str = "ids",
    tokens: str = "auto",
    eos: str = "client",
    stream: bool = False,
    concurrency: int = 32,
    timeout_s: float = 300.0,
    extra: object = None,
    api_key_env: str | None = None,
    listed: bool = True,
    release: str | None = None,
    sampling: object = "none",
    seeded: bool = False,
    logprobs: bool = False,
) -> Engine:
    """Builds an engine for a server.

    * `prompts`: ids (token ids, as vLLM and SGLang take them) or words.
    * `tokens`, what is read back: ids (requested by `return_token_ids`), logprobs (requested by
      `return_tokens_as_token_ids`), words of the text, or auto: the first of these in the answer.
    * `eos`, where a request's EOS ids are applied: client (all tokens up to the cap are requested and
      cut here at the first EOS), stop_token_ids, or generation_config (as in transformers serve).
    * `stream`: answers arrive token by token, and the engine can be stepped.
    * `concurrency`: how many requests of a call run at once. `timeout_s`: the longest silence.
    * `extra`: a JSON object that is merged into every body; null removes a field.
    * `api_key_env`: the environment variable that holds the key.
    * `release`: the server's name and version, for the title of a verdict.
    * `sampling`: which fields of `SamplingParams` the server takes: none, openai (those of the
      interface), vllm, or names with commas between them. Stop sequences are applied here where EOS
      ids are; `min_tokens` needs a server that applies EOS ids.
    * `seeded`: a seed decides what is drawn. `logprobs`: the server gives those of tokens by their ids.
    * `listed`: false for a server whose `{base_url}/models` does not list `model`.

    Raises `UsageError` for wrong options, and if no such server answers.
    """
    if base_url is None or model is None:
        raise UsageError(
            "openai needs to know its server: openai?base_url=http://HOST:PORT/v1&model=NAME"
        )
    require_choice(prompts, "prompts", PROMPTS)
    require_choice(tokens, "tokens", TOKENS)
    require_choice(eos, "eos", EOS)
    if not _is_number(concurrency) or concurrency != int(concurrency) or concurrency < 1:
        raise UsageError(f"concurrency is {concurrency!r}, but must be a whole number of at least 1")
    if not _is_number(timeout_s) or not 0 < timeout_s < float("inf"):
        raise UsageError(f"timeout_s is {timeout_s!r}, but must be a number of seconds above 0")
    server = Server(str(base_url), timeout_s, _api_key(api_key_env))
    _require_listed(server, str(model), listed)
    taken = _fields(sampling, eos, bool(logprobs))
    if seeded and "seed" not in taken:
        raise UsageError("seeded is true, which needs sampling with a seed: sampling=openai")
    if logprobs and tokens == "words":
        raise UsageError("logprobs is true, which needs tokens that are read as ids or logprobs")
    vocab_size = Limits.of(model_under_test, config).vocab_size
    more = (_json_object(extra), taken, bool(seeded))
    dialect = Dialect(str(model), vocab_size, prompts, tokens, eos, bool(stream), *more)
    engine = engine_at(server, dialect, model_under_test, config, int(concurrency))
    engine.release = None if release is None else str(release)
    return engine


def engine_at(
    server: Server,
    dialect: Dialect,
    model: PreTrainedModel,
    config: EngineConfig,
    concurrency: int,
) -> OpenAIEngine:
    """Returns an engine for a server that is known to answer."""
    kind = SteppingOpenAIEngine if dialect.is_streamed else OpenAIEngine
    limits = (Limits.of(model, EngineConfig()), Limits.of(model, config))
    request_filter = RequestFilter(*limits, dialect.fields, dialect.prompts == "words")
    return kind(server, dialect, request_filter, concurrency)


def require_choice(value: object, name: str, choices: Collection[str]) -> None:
    """Raises `UsageError` if the value of the option `name` is not one of the choices."""
    if value not in choices:
        raise UsageError(f"{name} is {value!r}, but must be one of {', '.join(choices)}")


def _fields(sampling: object, eos: str, has_logprobs: bool) -> frozenset[str]:
    """Returns the fields of `SamplingParams` that requests may use. Raises `UsageError`."""
    names = str(sampling).split(",")
    if len(names) > 1 or names[0] in SAMPLING["vllm"]:
        for each in names:
            require_choice(each, "a field of sampling", SAMPLING["vllm"])
        named = frozenset(names)
    else:
        require_choice(sampling, "sampling", SAMPLING)
        named = frozenset(SAMPLING[str(sampling)])
    if eos == "client":
        named = (named | {CLIENTS} if named else named) - {"min_tokens"}
    return named | {"logprobs"} if has_logprobs else named


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _json_object(extra: object) -> dict[str, Any]:
    try:
        found = json.loads(extra) if isinstance(extra, str) else extra
    except ValueError:
        found = extra
    if found is None:
        return {}
    if not isinstance(found, dict):
        raise UsageError(f"extra is {extra!r}, but must be a JSON object")
    return {str(key): value for key, value in found.items()}


def _api_key(name: str | None) -> str | None:
    if name is None:
        return None
    if name not in os.environ:
        raise UsageError(f"api_key_env is {name!r}, but there is no such environment variable")
    return os.environ[name]


def _require_listed(server: Server, model: str, listed: bool) -> None:
    """Raises `UsageError` if the server does not answer or does not list the model."""
    url = f"{server.base_url}/models"
    try:
        answer = server.ask("GET", "/models")
    except (EngineFailed, Refused) as error:
        if listed or (isinstance(error, EngineFailed) and not error.has_answered):
            raise UsageError(f"no such engine there: {error}") from None
        return
    try:
        names = [str(each["id"]) for each in answer["data"]]
    except (TypeError, KeyError):
        names = []
    if listed and model not in names:
        raise UsageError(
            f"{url} lists no model {model!r}: there is {', '.join(names) or 'none'}; listed=false "
            f"skips this check"
        )
