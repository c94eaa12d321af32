"""mistral.rs 0.9.5: a request that cannot fit into the context is begun, and its answer is cut."""

import sys
import tempfile

from setup_mistralrs import answer, save

NUM_POSITIONS, CAP = 512, 30
with tempfile.TemporaryDirectory() as folder:
    save(folder, max_position_embeddings=NUM_POSITIONS)
    tokens = answer(folder, [5] * 500, CAP)
print(f"{NUM_POSITIONS} positions, a prompt of 500 tokens, max_tokens {CAP}: {len(tokens)} tokens, and no error")
sys.exit(len(tokens) < CAP)
