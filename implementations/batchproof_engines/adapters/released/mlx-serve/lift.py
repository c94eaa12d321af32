"""Copies a checkpoint for `mlx_lm.server`, with the rope parameters where MLX-LM reads them, and a
tokenizer that takes words that it does not know: the server tries one when it starts.

lift.py CHECKPOINT COPY
"""

import json
import shutil
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "mlx"))
from lifting import lifted  # type: ignore[import-not-found]

source, target = map(Path, sys.argv[1:])
target.mkdir()
for each in source.iterdir():
    if each.is_file():
        shutil.copy(each, target)
config = json.loads((source / "config.json").read_text(encoding="utf-8"))
config |= lifted(config)
tokenizer = json.loads((source / "tokenizer.json").read_text(encoding="utf-8"))
tokenizer["model"]["unk_token"] = next(iter(tokenizer["model"]["vocab"]))  # no prompt has such a word
(target / "tokenizer.json").write_text(json.dumps(tokenizer), encoding="utf-8")
(target / "config.json").write_text(json.dumps(config), encoding="utf-8")
