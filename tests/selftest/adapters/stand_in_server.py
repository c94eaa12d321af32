"""A completions server for tests: it answers as `gpt2-hash` does, by integer arithmetic, and
misbehaves on request."""

import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from batchproof.api import Limits, Request
from batchproof.models import gpt2_hash_oracle
from batchproof_engines.adapters.word_tokenizer import id_of, text_of

MODEL = "gpt2-hash"
NUM_SLOTS = 2
LIMITS = Limits(vocab_size=256, max_model_len=256)


class Handler(BaseHTTPRequestHandler):
    """Handles one connection."""

    server: "StandIn"

    def do_GET(self) -> None:
        names = [{"id": name} for name in self.server.listed]
        self.say(200, {"object": "list", "data": names, "total_slots": NUM_SLOTS})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with self.server.counting(body, self.headers.get("Authorization")):
            try:
                self.server.behaviour(self, body)
            except OSError:  # the client has cut the connection
                self.server.count_hung_up()

    def say(self, status: int, answer: object) -> None:
        text = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def begin_stream(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()

    def event(self, data: object) -> None:
        text = data if isinstance(data, str) else json.dumps(data)
        self.wfile.write(f"data: {text}\n\n".encode())
        self.wfile.flush()

    def log_message(self, *_given: object) -> None: ...


class StandIn(ThreadingHTTPServer):
    """A server whose `behaviour` answers each POST; its other attributes count what it has received."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.behaviour: Callable[[Handler, dict[str, Any]], None] = answer
        self.listed: Sequence[str] = (MODEL,)
        self.token_s = 0.0  # before each token of a stream
        self.bodies: list[dict[str, Any]] = []
        self.keys: list[str | None] = []
        self.num_hung_up = 0
        self.num_running = self.most_running = 0
        self._lock = threading.Lock()

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1"

    def count_hung_up(self) -> None:
        with self._lock:
            self.num_hung_up += 1

    @contextmanager
    def counting(self, body: dict[str, Any], key: str | None) -> Iterator[None]:
        with self._lock:
            self.bodies.append(body)
            self.keys.append(key)
            self.num_running += 1
            self.most_running = max(self.most_running, self.num_running)
        try:
            yield
        finally:
            with self._lock:
                self.num_running -= 1


def answer(handler: Handler, body: dict[str, Any]) -> None:
    """Answers as a correct server that takes ids and words."""
    prompt = body["prompt"]
    if isinstance(prompt, str):
        prompt = [id_of(word, LIMITS.vocab_size) for word in prompt.split()]
    refusal = LIMITS.refusal(Request("", tuple(prompt), body["max_tokens"]))
    if refusal is not None:
        handler.say(400, {"error": {"message": refusal, "code": 400}})
        return
    tokens = right_tokens(prompt, body["max_tokens"], body.get("stop_token_ids", []))
    is_stopped = bool(tokens) and tokens[-1] in body.get("stop_token_ids", [])
    reason = "stop" if is_stopped else "length"
    usage = {"prompt_tokens": len(prompt), "completion_tokens": len(tokens)}
    if not body.get("stream"):
        choice = piece(tokens, body) | {"finish_reason": reason}
        handler.say(200, {"choices": [choice], "usage": usage})
        return
    handler.begin_stream()
    for number, token in enumerate(tokens):
        time.sleep(handler.server.token_s)
        handler.event({"choices": [piece([token], body, is_first=number == 0)]})
    handler.event({"choices": [{"index": 0, "text": "", "finish_reason": reason}], "usage": usage})
    handler.event("[DONE]")


def right_tokens(prompt: Sequence[int], cap: int, eos: Sequence[int] = ()) -> list[int]:
    """Returns the tokens that `gpt2-hash` generates, up to the cap or the first EOS."""
    tokens: list[int] = []
    for token in gpt2_hash_oracle.generate(prompt, cap):
        tokens.append(token)
        if token in eos:
            break
    return tokens


def piece(tokens: list[int], body: dict[str, Any], is_first: bool = True) -> dict[str, Any]:
    text = text_of(tokens, LIMITS.vocab_size)
    choice: dict[str, Any] = {"index": 0, "text": text if is_first else f" {text}"}
    if body.get("return_token_ids"):
        choice["token_ids"] = tokens
    if body.get("logprobs"):
        names = [f"token_id:{token}" for token in tokens]
        choice["logprobs"] = {
            "tokens": names,
            "token_logprobs": [-0.5 for _ in names],
            "top_logprobs": [{"token_id:9": -1.5, name: -0.5} for name in names],
        }
    return choice
