"""Token ids as words, for servers that take and return text only.

In a vocabulary of V tokens, token n is the word "t" followed by n with as many digits as V - 1 has: of
256 tokens the first is `t000`. Words are separated by one space. A checkpoint with this tokenizer has
no special tokens and no unknown word: any other text is an error, so no text is ever misread.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast


def word_len(vocab_size: int) -> int:
    return 1 + len(str(vocab_size - 1))


def word_of(token_id: int, vocab_size: int) -> str:
    """Returns the word of a token; for an id outside the vocabulary, a word that no tokenizer knows."""
    return f"t{token_id:0{word_len(vocab_size) - 1}d}"


def text_of(token_ids: Sequence[int], vocab_size: int) -> str:
    return " ".join(word_of(token_id, vocab_size) for token_id in token_ids)


def stop_texts(sequences: Iterable[Sequence[int]], vocab_size: int, start: int = 0) -> list[str]:
    """Returns a text for each sequence, which occurs where that does and nowhere else: its words from
    the first character on, or the second, within a token. What has no word is left out."""
    vocabulary = range(vocab_size)
    known = (each for each in sequences if all(token in vocabulary for token in each))
    return [text_of(each, vocab_size)[start:] for each in known]


def id_of(word: str, vocab_size: int) -> int:
    """Returns the token of a word. Raises `ValueError` for anything but one word of the vocabulary."""
    digits = word[1:]
    if digits.isascii() and digits.isdecimal() and int(digits) < vocab_size:
        token_id = int(digits)
        if word == word_of(token_id, vocab_size):
            return token_id
    first, last = word_of(0, vocab_size), word_of(vocab_size - 1, vocab_size)
    raise ValueError(f"{word[:80]!r} is not the word of a token: words are {first} to {last}")


def words_tokenizer(vocab_size: int) -> PreTrainedTokenizerFast:
    """Returns the tokenizer to save beside a checkpoint, so that text-only servers can serve it."""
    from tokenizers import Tokenizer  # noqa: PLC0415 (slow to import, and only needed here)
    from tokenizers.models import WordLevel  # noqa: PLC0415
    from tokenizers.pre_tokenizers import WhitespaceSplit  # noqa: PLC0415
    from transformers import PreTrainedTokenizerFast  # noqa: PLC0415

    vocabulary = {word_of(token_id, vocab_size): token_id for token_id in range(vocab_size)}
    # The unknown token is not in the vocabulary: an unknown word raises.
    tokenizer = Tokenizer(WordLevel(vocabulary, unk_token="<none>"))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, clean_up_tokenization_spaces=False)
