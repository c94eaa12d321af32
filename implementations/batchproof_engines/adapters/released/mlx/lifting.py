"""What of a config MLX-LM reads under other names, or in another place, than transformers 5 writes it.
`../mlx-serve` uses it too."""

from __future__ import annotations

from typing import Any


def lifted(config: dict[str, Any]) -> dict[str, Any]:
    """Returns the rope parameters under the names of transformers 4, where all layers have the same."""
    given = config.get("rope_parameters") or {}
    if "rope_theta" not in given:
        return {}
    found = {"rope_theta": given["rope_theta"]}
    if "partial_rotary_factor" in given:
        found["partial_rotary_factor"] = given["partial_rotary_factor"]
    if "linear_attention" in (config.get("layer_types") or ()):  # Qwen 3 Next
        found["full_attention_interval"] = config["layer_types"].index("full_attention") + 1
    if config["model_type"] == "lfm2":
        found |= {"block_dim": config["hidden_size"], "block_ff_dim": config["intermediate_size"]}
    if given.get("rope_type", "default") != "default":
        found["rope_scaling"] = {name: each for name, each in given.items() if name != "rope_theta"}
    return found
