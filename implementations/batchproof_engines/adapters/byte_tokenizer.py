"""A tokenizer in which token n is the byte n, for engines that follow grammars.

It is a byte-level BPE without merges, which every library of grammars reads. Its EOS is `END`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

BYTES = "bytes"  # the folder of this tokenizer, beside the weights of a checkpoint
NUM_BYTES = 256
END = 2  # a control character, which stands in no text


def bytes_tokenizer() -> PreTrainedTokenizerFast:
    """Returns the tokenizer. It spells bytes as GPT-2 does: those that print as themselves, and the
    others, in their order, as the characters from 256 on."""
    from tokenizers import Tokenizer, decoders, pre_tokenizers  # noqa: PLC0415 (slow to import)
    from tokenizers.models import BPE  # noqa: PLC0415
    from transformers import PreTrainedTokenizerFast  # noqa: PLC0415

    printing = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(NUM_BYTES) if byte not in printing]
    spelled = {byte: chr(byte) for byte in printing}
    spelled |= {byte: chr(NUM_BYTES + place) for place, byte in enumerate(others)}
    tokenizer = Tokenizer(BPE({spelled[byte]: byte for byte in range(NUM_BYTES)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=spelled[END])
