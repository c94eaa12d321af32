"""MLX-LM 0.32.2: the logit_bias of an unknown token is written behind the logits."""

import subprocess
import sys

import mlx.core as mx
from mlx_lm.sample_utils import make_logits_processors

VOCAB_SIZE = 64
if "bias" in sys.argv:
    after = make_logits_processors({int(sys.argv[-1]): 5.0})[0](None, mx.zeros((1, VOCAB_SIZE)))
    print({token: each for token, each in enumerate(after[0].tolist()) if each} or "none", flush=True)
    raise SystemExit(0)
is_wrong = False
for token in (VOCAB_SIZE, -1, 10**9):
    child = subprocess.run([sys.executable, __file__, "bias", str(token)], capture_output=True, text=True, check=False)
    moved = child.stdout.strip() or "none, for it ends before"
    print(f"bias of token {token}: of {VOCAB_SIZE} logits it moves {moved}; the process ends with {child.returncode}")
    is_wrong |= "ValueError" not in child.stderr
raise SystemExit(is_wrong)
