"""mistral.rs 0.9.5: with sliding windows and the prefix cache, a conversation that goes on beyond the
window is answered wrongly."""

import sys
import tempfile

from setup_mistralrs import answer, runner, same, save, stream, told

is_wrong = False
with tempfile.TemporaryDirectory() as folder:
    save(folder, "MistralForCausalLM", sliding_window=8)
    for num_tokens in (3, 12, 20):
        first = [*range(num_tokens)]
        engine = runner(folder, prefix_cache_n=16)
        second = [*first, *stream(engine, first, 4), 40, 41]
        tokens, alone = told(stream(engine, second, 8)), answer(folder, second, 8)
        what = tokens if isinstance(tokens, str) else f"{same(tokens, alone)} of 8 tokens as without the cache"
        print(f"a window of 8, a first prompt of {num_tokens}, the second turn: {what}")
        is_wrong |= tokens != alone
sys.exit(is_wrong)
