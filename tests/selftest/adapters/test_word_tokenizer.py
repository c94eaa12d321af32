"""Token ids as words, and a checkpoint that text-only servers can serve."""

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from batchproof.__main__ import main
from batchproof.models.embedded import EMBEDDED
from batchproof_engines.adapters.word_tokenizer import id_of, text_of, word_of, words_tokenizer


def test_all_tokens_survive_text_and_tokenizer() -> None:
    assert [word_of(size - 1, size) for size in (1, 10, 11, 256)] == ["t0", "t9", "t10", "t255"]
    assert len({len(word_of(token_id, 256)) for token_id in range(256)}) == 1
    token_ids = [*range(256), 0, 0, 255]
    text = text_of(token_ids, 256)
    tokenizer = words_tokenizer(256)
    assert [id_of(word, 256) for word in text.split()] == tokenizer.encode(text) == token_ids
    assert tokenizer.decode(token_ids, skip_special_tokens=True) == text


@pytest.mark.parametrize("text", ["t256", "t001t002", "t٠٠١"])
def test_other_text_is_an_error_and_never_guessed(text: str) -> None:
    with pytest.raises(ValueError, match="is not the word of a token: words are t000 to t255"):
        id_of(text, 256)
    with pytest.raises(Exception, match="UNK"):
        words_tokenizer(256).encode(f"t000 {text}")


def test_a_checkpoint_holds_the_suites_own_model(tmp_path: Path) -> None:
    folder = tmp_path / "made" / "here"
    assert main(["checkpoint", "gpt2-hash", str(folder)]) == 0
    loaded = AutoModelForCausalLM.from_pretrained(folder, dtype="auto")
    assert loaded.dtype is torch.float32
    own = EMBEDDED["gpt2-hash"].build().state_dict()
    assert all(torch.equal(tensor, own[name]) for name, tensor in loaded.state_dict().items())
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert tokenizer.encode("t001 t255") == [1, 255]
    assert tokenizer.all_special_ids == []
