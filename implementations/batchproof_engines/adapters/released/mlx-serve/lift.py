"""Copies a checkpoint for `mlx_lm.server`, with the rope parameters where MLX-LM reads them, and a
tokenizer that takes words that it does not know: the server tries one when it starts.

lift.py CHECKPOINT COPY
"""

import json
import shutil
import sys
from pathlib import Path

source, target = map(Path, sys.argv[1:])
target.mkdir()
for each in source.iterdir():
    if each.is_file():
        shutil.copy(each, target)
config = json.loads((source / "config.json").read_text(encoding="utf-8"))
rope = config.get("rope_parameters") or {}
if "rope_theta" in rope:
    config["rope_theta"] = rope["rope_theta"]
    if rope.get("rope_type", "default") != "default":
        config["rope_scaling"] = {name: each for name, each in rope.items() if name != "rope_theta"}
tokenizer = json.loads((source / "tokenizer.json").read_text(encoding="utf-8"))
tokenizer["model"]["unk_token"] = next(iter(tokenizer["model"]["vocab"]))  # no prompt has such a word
(target / "tokenizer.json").write_text(json.dumps(tokenizer), encoding="utf-8")
(target / "config.json").write_text(json.dumps(config), encoding="utf-8")
