"""mistral.rs 0.9.5: a request within the context fails if its cache has to grow and the context is no
multiple of 512."""

import sys
import tempfile

from setup_mistralrs import runner, save, stream, told

is_wrong = False
for num_positions in (1024, 700):
    with tempfile.TemporaryDirectory() as folder:
        save(folder, max_position_embeddings=num_positions)
        engine = runner(folder)
        tokens = told(stream(engine, [5] * 500, 20))
    print(f"{num_positions} positions, a prompt of 500 tokens, 20 more: {tokens if isinstance(tokens, str) else f'{len(tokens)} tokens'}")
    is_wrong |= len(tokens) != 20
sys.exit(is_wrong)
