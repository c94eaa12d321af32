"""What an engine may have been told to do beside what it is asked: each configuration says which
request, on which model, its answers are right answers to."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from operator import add, itemgetter
from typing import Any

from batchproof.api import Completion, Request, SamplingParams
from batchproof.models.catalogue import ModelUnderTest
from batchproof.oracle.oracle import Prompt

SMALL_VOCABULARY = 1024  # of which every token is tried as one put before or behind the prompt
THETAS = (1e4, 5e5, 1e6)
FACTORS = (2.0, 4.0, 8.0)
PENALTIES = tuple(round(1 + 0.01 * each, 2) for each in range(1, 51))
SUBTRACTED = tuple(round(0.1 * each, 1) for each in range(1, 21))


Asked = Callable[[Request], Request]


@dataclass(frozen=True)
class Answered:
    """A request with its answer."""

    request: Request
    completion: Completion

    @property
    def tokens(self) -> tuple[Prompt, tuple[int, ...]]:
        """The prompt, and the tokens that were answered."""
        return self.request.prompt_token_ids, self.completion.token_ids


def _same(request: Request) -> Request:
    return request


def _as_given(_request: Request, completion: Completion) -> Completion:
    return completion


@dataclass(frozen=True)
class Configuration:
    """`asked` is the request that the engine answered in truth, `read` its answer in the form of the
    contract, `changes` fields of the model's configuration."""

    name: str
    asked: Asked = _same
    read: Callable[[Request, Completion], Completion] = _as_given
    changes: Mapping[str, Any] = field(default_factory=dict)
    is_drawn: bool = False  # no token is the right one
    family: str = ""  # of configurations that differ in `value` alone
    value: float = 0.0

    @property
    def model(self) -> str:
        """What tells the altered model from others; empty for the model as it is."""
        return self.name if self.changes else ""

    def of(self, given: Answered) -> Answered:
        """Returns what was answered in truth."""
        return Answered(self.asked(given.request), self.read(given.request, given.completion))


AS_ASKED = Configuration("as asked")


def configurations(
    subject: ModelUnderTest, answers: Sequence[Answered], shortest_wrong: int
) -> Iterator[Configuration]:
    """Yields every configuration that is tried, the likeliest first. Those that can be told from the
    answers depend on them; `shortest_wrong` is the length of the shortest prompt with an answer that is
    not explained as it was asked."""
    yield from _ends(answers)
    yield Configuration("the prompt is echoed before the answer", read=_without_echo)
    yield from _prompts(subject, shortest_wrong)
    yield from _choices()
    yield from _models(subject)


def _ends(answers: Sequence[Answered]) -> Iterator[Configuration]:
    cut = [
        tokens
        for each in answers
        if 0 < len(tokens := each.completion.token_ids) < each.request.max_new_tokens
        and tokens[-1] not in each.request.eos_token_ids
    ]
    for token in dict.fromkeys(tokens[-1] for tokens in cut):
        name = f"every answer also stops at token {token}, an EOS of the engine's own"
        yield Configuration(name, _ending_at(token))
    for length in dict.fromkeys(map(len, cut)):
        name = f"every answer is cut at {length} tokens, a limit of the engine's own"
        yield Configuration(name, _cut_at(length))
    yield Configuration(
        "EOS ids are ignored (ignore_eos)", lambda r: replace(r, eos_token_ids=frozenset())
    )


def _ending_at(token: int) -> Asked:
    return lambda r: replace(r, eos_token_ids=r.eos_token_ids | {token})


def _cut_at(length: int) -> Asked:
    return lambda r: replace(r, max_new_tokens=min(length, r.max_new_tokens))


def _without_echo(request: Request, completion: Completion) -> Completion:
    prompt, tokens = request.prompt_token_ids, completion.token_ids
    is_echo = tokens[: len(prompt)] == prompt
    return replace(completion, token_ids=tokens[len(prompt) :]) if is_echo else completion


def _prompts(subject: ModelUnderTest, shortest_wrong: int) -> Iterator[Configuration]:
    for token in _special_tokens(subject):
        yield _fed(f"token {token} stands before each prompt (BOS)", partial(add, (token,)))
        yield _fed(f"token {token} stands behind each prompt (EOS)", _with_behind(token))
    for length in range(1, shortest_wrong):
        yield _fed(
            f"only the last {length} tokens of a prompt are read", itemgetter(slice(-length, None))
        )
        yield _fed(f"only the first {length} tokens of a prompt are read", itemgetter(slice(length)))
    yield _fed("the first token of each prompt is left out", lambda p: p[1:] or p)
    yield from _templates(subject)


def _with_behind(token: int) -> Callable[[Prompt], Prompt]:
    return lambda prompt: (*prompt, token)


def _fed(name: str, feed: Callable[[Prompt], Prompt]) -> Configuration:
    return Configuration(name, lambda r: replace(r, prompt_token_ids=feed(r.prompt_token_ids)))


def _special_tokens(subject: ModelUnderTest) -> Sequence[int]:
    if subject.vocab_size <= SMALL_VOCABULARY:
        return range(subject.vocab_size)
    config: Any = subject.model.config.get_text_config()
    named = [getattr(config, f"{each}_token_id", None) for each in ("bos", "eos", "pad")]
    special = list(getattr(subject.tokenizer, "all_special_ids", ()))
    flat = [t for each in named for t in (each if isinstance(each, list) else [each])]
    return [*dict.fromkeys(t for t in (*flat, *special, 0, 1, 2) if isinstance(t, int))]


def _templates(subject: ModelUnderTest) -> Iterator[Configuration]:
    """Yields the chat template of the checkpoint's tokenizer, if it has one."""
    tokenizer: Any = subject.tokenizer
    if getattr(tokenizer, "chat_template", None):

        def feed(prompt: Prompt) -> Prompt:
            turn = [{"role": "user", "content": subject.decode(prompt)}]
            fed = tokenizer.apply_chat_template(turn, add_generation_prompt=True, return_dict=False)
            return tuple(fed)

        yield _fed("the tokenizer's chat template surrounds each prompt", feed)


def _choices() -> Iterator[Configuration]:
    for name, values in (
        ("repetition_penalty", PENALTIES),
        ("presence_penalty", SUBTRACTED),
        ("frequency_penalty", SUBTRACTED),
    ):
        for value in values:
            asked = SamplingParams(**{name: value})  # type: ignore[arg-type]
            each = chosen_with(asked, f"{name} {value:g} by default")
            yield replace(each, family=name, value=value)


def chosen_with(sampling: SamplingParams, name: str) -> Configuration:
    """Returns the configuration in which every request has these parameters."""
    is_drawn = sampling.temperature > 0
    return Configuration(name, lambda r: replace(r, sampling=sampling), is_drawn=is_drawn)


def _models(subject: ModelUnderTest) -> Iterator[Configuration]:
    config: Any = subject.model.config.get_text_config()
    if config is not subject.model.config:
        return
    kinds = getattr(config, "layer_types", None)
    if getattr(config, "sliding_window", None):
        full = {"layer_types": ["full_attention"] * len(kinds)} if kinds else {}
        yield Configuration("the sliding window is ignored", changes={"sliding_window": None, **full})
    rope = getattr(config, "rope_parameters", None)
    if not isinstance(rope, dict) or "rope_theta" not in rope:
        return
    for theta in THETAS:
        if theta != rope["rope_theta"]:
            yield _with_rope(rope, f"RoPE theta is {theta:g}", rope_theta=theta)
    for factor in FACTORS:
        name = f"RoPE positions are scaled by 1/{factor:g} (linear)"
        yield _with_rope(rope, name, rope_type="linear", factor=factor)
    if rope.get("rope_type", "default") != "default":
        yield _with_rope(rope, "RoPE scaling is ignored", rope_type="default")


def _with_rope(rope: dict[str, Any], name: str, **parameters: Any) -> Configuration:
    changed = {**copy.deepcopy(rope), **parameters}
    return Configuration(name, changes={"rope_parameters": changed})
