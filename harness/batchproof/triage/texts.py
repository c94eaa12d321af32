"""Prompts and answers as texts, for endpoints that take and return no token ids."""

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import takewhile
from operator import itemgetter
from typing import Any, Self

import torch

from batchproof.errors import UsageError
from batchproof.models.catalogue import ModelUnderTest
from batchproof.oracle.oracle import Prompt
from batchproof.records.probe_packs import Probe, Step
from batchproof.run.registry import engines_module

UNREADABLE = "\ufffd"  # stands for bytes that are a part of a character
TOP_P = 0.95  # of the tokens that prompts are drawn from
SYSTEM_PROMPTS = ("You are a helpful assistant.", "")
MOST_DRAWS = 4  # of prompts for each that is wanted: some are not named by their text
Feed = Callable[[Probe], Prompt]  # what is read of a probe


@dataclass(frozen=True)
class Texts:
    """A tokenizer. `is_natural`: its tokens are parts of words. `is_chat`: a prompt is a chat of one
    turn, and its text is that turn."""

    tokenizer: Any
    is_natural: bool
    is_chat: bool = False
    are_used: bool = True

    @classmethod
    def of(cls, subject: ModelUnderTest, is_chat: bool = False, are_used: bool = True) -> Self:
        """Returns the checkpoint's own, else words as `batchproof checkpoint` writes them. Raises
        `UsageError` for chats without a template."""
        if is_chat and not getattr(subject.tokenizer, "chat_template", None):
            raise UsageError(
                f"--chat needs a chat template, which the tokenizer of {subject.name} lacks"
            )
        if subject.tokenizer is not None:
            return cls(subject.tokenizer, True, is_chat, are_used)
        words = engines_module("adapters.word_tokenizer").words_tokenizer(subject.vocab_size)
        return cls(words, False, are_used=are_used)

    def drawn(
        self, subject: ModelUnderTest, rng: random.Random, length: int, num: int
    ) -> list[tuple[Prompt, str | None]]:
        """Returns up to `num` prompts of about so many tokens, with their texts."""
        found: list[tuple[Prompt, str | None]] = []
        for _ in range(MOST_DRAWS):
            for ids in self._ids(subject, rng, length, num - len(found)):
                text = self._decode(ids)
                prompt = self._prompt(text)
                if UNREADABLE not in text and (self.is_natural or prompt == ids):
                    found.append((prompt, text))
            if len(found) == num:
                break
        return found

    def _prompt(self, text: str) -> Prompt:
        """Returns the ids that a server reads."""
        return self._as_chat(text) if self.is_chat else tuple(self.tokenizer.encode(text))

    def _ids(self, subject: ModelUnderTest, rng: random.Random, length: int, num: int) -> list[Prompt]:
        if not self.is_natural:
            return [random_prompt(subject, rng, length) for _ in range(num)]
        starts = [rng.choice(subject.alphabet) for _ in range(num)]
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(rng.getrandbits(63))
            drawn = subject.model.generate(
                torch.tensor([[each] for each in starts], device=subject.model.device),
                attention_mask=torch.ones(num, 1, dtype=torch.long, device=subject.model.device),
                max_new_tokens=length - 1,
                do_sample=True,
                temperature=1.0,
                top_k=0,
                top_p=TOP_P,
                pad_token_id=0,
            )
        special = set(self.tokenizer.all_special_ids)
        return [tuple(t for t in row if t not in special) for row in drawn.tolist()]

    def _decode(self, ids: Sequence[int]) -> str:
        return str(
            self.tokenizer.decode(
                list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False
            )
        )

    def with_texts(self, prompt: Prompt, steps: Sequence[Step]) -> tuple[Step, ...]:
        """Returns the steps with the texts of their tokens, up to the first that texts do not tell: a
        part of a character, or an end."""
        found = self.with_all_texts(prompt, steps)
        told = (len(each.texts[0]) > 0 and UNREADABLE not in each.texts[0] for each in found)
        return tuple(each for each, _ in takewhile(itemgetter(1), zip(found, told, strict=True)))

    def with_all_texts(self, prompt: Prompt, steps: Sequence[Step]) -> tuple[Step, ...]:
        """Returns the steps with the texts of all their tokens."""
        best = [step.tokens[0] for step in steps]
        return tuple(self._step((*prompt, *best[:i]), step) for i, step in enumerate(steps))

    def _step(self, path: Prompt, step: Step) -> Step:
        before = self._decode(path)
        texts = [self._decode((*path, each)) for each in step.tokens]
        return replace(
            step, texts=tuple(t[len(before) :] if t.startswith(before) else UNREADABLE for t in texts)
        )

    def configurations(self, subject: ModelUnderTest) -> Iterator[tuple[str, Feed]]:
        """Yields what a tokenizer and its template may make of a probe otherwise, and its name."""
        first = subject.model.config.get_text_config().bos_token_id
        if self.is_natural and isinstance(first, int):
            yield f"token {first} (BOS) does not stand before prompts", partial(_without, first)
        if self.is_chat:
            for each in SYSTEM_PROMPTS:
                name = f"the system prompt {each!r} stands before each chat"
                yield name, partial(self._fed_as_chat, [{"role": "system", "content": each}])
        elif getattr(self.tokenizer, "chat_template", None):
            yield "the tokenizer's chat template surrounds each prompt", partial(self._fed_as_chat, [])

    def _fed_as_chat(self, before: Sequence[Mapping[str, str]], probe: Probe) -> Prompt:
        return self._as_chat(probe.text or "", before)

    def _as_chat(self, text: str, before: Sequence[Mapping[str, str]] = ()) -> Prompt:
        """Returns the ids of a chat of one turn, behind other messages."""
        ids = self.tokenizer.apply_chat_template(
            [*before, {"role": "user", "content": text}], add_generation_prompt=True, return_dict=False
        )
        return tuple(ids)


def random_prompt(subject: ModelUnderTest, rng: random.Random, length: int) -> Prompt:
    return tuple(rng.choices(subject.alphabet, k=length))


def _without(first: int, probe: Probe) -> Prompt:
    prompt = probe.prompt
    return prompt[1:] if prompt[:1] == (first,) and len(prompt) > 1 else prompt
