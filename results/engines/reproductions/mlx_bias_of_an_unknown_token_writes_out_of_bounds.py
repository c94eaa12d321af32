"""MLX-LM 0.32.2: the logit_bias of an unknown token is written behind the logits.

`make_logits_processors` scatters the biases by id, and nothing compares an id with the vocabulary: one
just behind it corrupts the heap, a negative one biases another token, and a far one ends the process.
Each runs in a process of its own. Exit status 1: reproduced.
"""

import subprocess
import sys

import mlx.core as mx
from mlx_lm.sample_utils import make_logits_processors

VOCAB_SIZE = 64
if "bias" in sys.argv:
    after = make_logits_processors({int(sys.argv[-1]): 5.0})[0](None, mx.zeros((1, VOCAB_SIZE)))
    print({token: each for token, each in enumerate(after[0].tolist()) if each} or "none", flush=True)
    sys.exit(0)
is_wrong = False
for token in (VOCAB_SIZE, -1, 10**9):
    child = subprocess.run([sys.executable, __file__, "bias", str(token)], capture_output=True, text=True, check=False)
    moved = child.stdout.strip() or "none, for it ends before"
    print(f"bias of token {token}: of {VOCAB_SIZE} logits it moves {moved}; the process ends with {child.returncode}")
    is_wrong |= "ValueError" not in child.stderr
sys.exit(is_wrong)
