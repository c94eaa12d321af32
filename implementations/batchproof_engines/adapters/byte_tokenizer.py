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
    """Returns the tokenizer, which spells bytes as GPT-2 does."""
    from tokenizers import Tokenizer, decoders, pre_tokenizers  # noqa: PLC0415 (slow to import)
    from tokenizers.models import BPE  # noqa: PLC0415
    from transformers import PreTrainedTokenizerFast  # noqa: PLC0415
    from transformers.convert_slow_tokenizer import bytes_to_unicode  # noqa: PLC0415

    spelled = bytes_to_unicode()
    tokenizer = Tokenizer(BPE({spelled[byte]: byte for byte in range(NUM_BYTES)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=spelled[END])
