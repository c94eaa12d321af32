"""mistral.rs on a CPU, in process: its `Runner` computes in a thread of its own.

Conventions of the library and their sources; they are translated here, and nothing else is:
* `send_chat_completion_request` with `stream` returns at once, so requests run beside each other; who
  drops a stream cancels its request (lib.rs and stream.rs of mistralrs-pyo3).
* It takes text alone. A prompt is a message, which the checkpoint's chat template leaves as it is.
* A stop text of one token is a stop token (add_request.rs). It is not in the answer, nor are its
  logprobs: where a request has several, or wants logprobs, the adapter ends it.
* Keys and values of a model in float32 are kept in float16, unless the environment says otherwise
  (cpu_kv_f16 in kv_cache/mod.rs).
* A thread that has ended closes all streams, which then say "Received none": no refusal.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections import deque
from importlib.metadata import version
from pathlib import Path
from typing import Any

os.environ.setdefault("RUST_LOG", "error")

from mistralrs import ChatCompletionRequest, ModelDType, Runner, Which

sys.path.append(str(Path(__file__).resolve().parents[1]))  # where `serving` lies
sys.path.append(str(Path(__file__).resolve().parents[1] / "mlx"))
from lifting import lifted
from serving import (
    Event,
    Length,
    Request,
    Sampling,
    Stepped,
    Unsupported,
    biases_of,
    event_of,
    made_once,
    serve,
    words,
)

NUM_CACHED = 16  # prompts kept with prefix caching, the library's default
DTYPES = {"float32": ModelDType.F32, "bfloat16": ModelDType.BF16, "float16": ModelDType.F16}
KV_CACHES = {"float32": "1", "float16": "0"}  # what the variable says
SAME_NAMES = ("top_k", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty")
CHANGING = ("temperature", "repetition_penalty", "presence_penalty", "frequency_penalty", "logit_bias")
LIMITS = {
    "apart": [
        *([name, "logprobs"] for name in CHANGING),
        *(["repetition_penalty", name] for name in CHANGING[2:]),
        ["top_p", "min_p"],
    ],
    "ranges": {"min_p": [0, 1 - 2**-24]},  # 1 switches it off, as its page on sampling says
}
# What `toktrie` tells the bytes of a token by, and what leaves the words as they are.
DECODER = {"type": "Sequence", "decoders": [{"type": "ByteFallback"}, {"type": "Fuse"}]}
TEMPLATE = "{{ messages[0]['content'] }}"


class MistralRs:
    """The library with its options."""

    name = "mistral.rs"
    version = version("mistralrs")
    sampling_fields = ("temperature", *SAME_NAMES, "logit_bias", "logprobs")
    sampling_limits = LIMITS

    def __init__(self, *, kv_cache: str = "float32", adapters: bool = False) -> None:
        if kv_cache not in KV_CACHES:
            raise ValueError(f"kv_cache is {kv_cache!r}: choose one of {', '.join(KV_CACHES)}")
        os.environ["MISTRALRS_CPU_KV_F32"] = KV_CACHES[kv_cache]
        self._which = Which.Lora if adapters else Which.Plain
        self.capabilities = ["stepping", "sampling", "logit_processing", "logprobs"]
        self.capabilities += ["adapters"] * adapters
        self.notes = [f"keys and values of a model in float32 are stored in {kv_cache}", Length.note]

    def build(self, folder: str, dtype: str, config: dict[str, Any], num_threads: int) -> Engine:
        if dtype not in DTYPES:
            raise Unsupported(f"it has no {dtype}")
        os.environ["RAYON_NUM_THREADS"] = str(num_threads)  # read when it first computes
        made = made_once(Path(folder, "mistralrs"), lambda made: _write(Path(folder), made))
        try:
            runner = Runner(
                self._which(str(made), dtype=DTYPES[dtype]),
                max_seqs=config["max_num_seqs"],
                prefix_cache_n=NUM_CACHED if config["prefix_caching"] else 0,
                token_source="none",
            )
        except ValueError as error:
            raise Unsupported(f"Runner says {str(error).splitlines()[0]}") from error
        sizes = json.loads((made / "config.json").read_text(encoding="utf-8"))
        return Engine(runner, Length(folder, config), sizes["vocab_size"])


class Answer:
    """A live request, and what its stream says, which a thread reads: who waits for a place in the
    batch keeps nobody else's tokens back."""

    def __init__(self, request: Request, stream: Any, news: threading.Event) -> None:
        self.request, self.told = request, deque[Any]()  # choices of the stream, or its error
        self._news = news  # that there is something told
        self.is_wanted = True
        threading.Thread(target=self._read, args=(stream,), daemon=True).start()

    def _read(self, stream: Any) -> None:
        """Reads the stream until it ends or the answer is not wanted: then it is dropped."""
        try:
            for chunk in stream:
                if not self.is_wanted:
                    return
                self._tell(chunk.choices[0])
        except ValueError as error:
            self._tell(error)

    def _tell(self, told: Any) -> None:
        self.told.append(told)
        self._news.set()


class Engine(Stepped):
    """An engine; a handle is an `Answer`."""

    refusals = (ValueError, TypeError, OverflowError)  # the last: a number that has no sign there

    def __init__(self, runner: Runner, length: Length, vocab_size: int) -> None:
        super().__init__()
        self._runner, self._length, self._vocab_size = runner, length, vocab_size
        self._news = threading.Event()

    def submit(self, request: Request) -> Answer:
        asked: Sampling = request.get("sampling", {})
        if too_long := self._length.refusal(request):
            raise ValueError(too_long)
        for token in request["prompt_token_ids"]:
            if not 0 <= token < self._vocab_size:
                raise ValueError(f"token {token} has no word: the vocabulary has {self._vocab_size}")
        ends = [[each] for each in request["eos_token_ids"]]
        is_named = len(ends) == 1 and "logprobs" not in asked
        chat = ChatCompletionRequest(
            messages=words.text_of(request["prompt_token_ids"], self._vocab_size),
            model="default",
            max_tokens=request["max_new_tokens"],
            stop_seqs=words.stop_texts(ends, self._vocab_size) if is_named else None,
            temperature=asked.get("temperature", 0.0),
            logit_bias=biases_of(asked),
            adapter=request.get("adapter"),
            logprobs="logprobs" in asked,
            top_logprobs=asked.get("logprobs"),
            stream=True,
            **{name: asked[name] for name in SAME_NAMES if name in asked},
        )
        stream = self._runner.send_chat_completion_request(chat)
        if not request["prompt_token_ids"]:
            next(stream)  # the refusal is waited for, as it leaves the id to another request
        return Answer(request, stream, self._news)

    def advance(self) -> list[Event]:
        """Waits until there is a token, and takes at most one of each request, as a step makes."""
        while not (ready := [each for each in self.live.values() if each.told]):
            self._news.wait()
            self._news.clear()  # before the next look, which misses nothing that is told behind it
        events = [self._event(each.request, each.told.popleft()) for each in ready]
        for event in (each for each in events if each["finish_reason"] is not None):
            self.abort(event["request_id"])  # what follows is not wanted
        return events

    def cancel(self, answer: Answer) -> None:
        answer.is_wanted = False

    def load_adapter(self, name: str, path: str) -> None:
        self._runner.load_lora_adapter(name, path, load_inplace=True)

    def unload_adapter(self, name: str) -> None:
        self._runner.unload_lora_adapter(name)

    def close(self) -> None:
        for name in list(self.live):
            self.abort(name)
        del self._runner  # which ends the streams

    def _event(self, request: Request, told: Any) -> Event:
        name, ends = request["request_id"], request["eos_token_ids"]
        if isinstance(told, ValueError):
            if "Received none" in str(told):
                raise RuntimeError("the thread of the library has ended") from told
            return event_of(name, None, "error", str(told).splitlines()[0])
        reason = told.finish_reason
        token = ends[0] if reason == "stop" else words.id_of(told.delta.content, self._vocab_size)
        event = event_of(name, token, "stop" if token in ends else reason)
        if of_token := told.logprobs:
            top = [(each.token, each.logprob) for each in of_token.top_logprobs]
            rank = next((place for place, each in enumerate(top, 1) if each[0] == token), None)
            event["logprobs"] = {"logprob": of_token.logprob, "rank": rank, "top": top}
        return event


def _write(folder: Path, made: Path) -> None:
    """Copies a checkpoint as the library reads one."""
    made.mkdir()
    for each in folder.glob("*.safetensors*"):
        (made / each.name).hardlink_to(each)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    tokenizer = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    texts = {
        "config.json": config | lifted(config),
        "tokenizer.json": tokenizer | {"decoder": DECODER},
        "tokenizer_config.json": {"chat_template": TEMPLATE},
    }
    for name, text in texts.items():
        (made / name).write_text(json.dumps(text), encoding="utf-8")


if __name__ == "__main__":
    serve(MistralRs)
    os._exit(0)  # a thread that is in the library when Python ends would be aborted
