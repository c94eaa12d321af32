"""Converts a checkpoint to a GGUF file by llama.cpp's own converter, with one word per token.

    python convert.py LLAMA_CPP CHECKPOINT FOLDER own|mended TYPE

makes `model.gguf` in the folder, with weights of the type: f32, f16, bf16, q8_0 or q4_0. In f32 it
makes `base.gguf` and `adapter.gguf` as well: a LoRA, and the model less its product, so that both
together are the model again. Each adapter that lies beside the checkpoint becomes `adapter-N.gguf`, and
is copied to `adapter-N`.

The converter knows the vocabularies of published models only, so another takes its place: the words of
the checkpoint, none of them special. What published configurations have and transformers 5 no longer
writes is put in. "mended" avoids two faults of the converter: of a head that is rotated in part it puts
all rows in another order, instead of those that are rotated; and of a Gemma 2 it drops `rope_theta`.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

SOURCE, CHECKPOINT, FOLDER, HOW, TYPE = sys.argv[1:]
sys.path[:0] = [SOURCE, str(Path(SOURCE, "gguf-py"))]

import convert_hf_to_gguf  # noqa: E402
import gguf  # noqa: E402
import numpy as np  # noqa: E402
import torch  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402

try:
    from conversion import get_model_class
    from conversion.llama import LlamaModel
except ImportError:  # one module before 0.3.24
    get_model_class = convert_hf_to_gguf.ModelBase.from_model_architecture
    LlamaModel = convert_hf_to_gguf.LlamaModel

HAS_MTP = "--no-mtp" in Path(convert_hf_to_gguf.__file__).read_text(encoding="utf-8")
RANK = 4
Tensors = Iterator[tuple[str, Any]]  # names and values
ADAPTED = ("attn_q.weight", "attn_output.weight", "ffn_down.weight")


def set_vocab(model: Any) -> None:
    """Writes token n of V as the word "t" and n, with as many digits as V - 1 has."""
    size, writer = model.hparams["vocab_size"], model.gguf_writer
    digits = len(str(size - 1))
    writer.add_tokenizer_model("bert")  # WordPiece: words are divided by blanks, and no piece is joined
    writer.add_token_list([f"\u2581t{n:0{digits}d}" for n in range(size)])
    writer.add_token_types([gguf.TokenType.NORMAL] * size)
    writer.add_add_bos_token(False)
    writer.add_add_eos_token(False)
    writer.add_add_sep_token(False)


def rotated_dimensions(config: dict[str, Any]) -> int:
    """Returns how many dimensions of a Bamba head are rotated."""
    share = (config.get("rope_parameters") or {}).get("partial_rotary_factor", 0.5)
    heads = config["num_attention_heads"]
    return int((config.get("head_dim") or config["hidden_size"] // heads) * share)


def in_pairs(rotated: int) -> Any:
    """Returns a `permute` that brings the two of a rotated pair together, and leaves other rows."""

    def permute(weights: torch.Tensor, n_head: int, n_head_kv: int | None) -> torch.Tensor:
        heads = n_head_kv or n_head
        rest = weights.shape[1:]
        rows = weights.reshape(heads, weights.shape[0] // heads, *rest).clone()
        pairs = rows[:, :rotated].reshape(heads, 2, rotated // 2, *rest).swapaxes(1, 2)
        rows[:, :rotated] = pairs.reshape(heads, rotated, *rest)
        return rows.reshape(weights.shape)

    return permute


def with_rope_theta(kind: Any, rope_theta: float) -> None:
    """Lets the converter of a class write the base of the rotation."""
    set_others = kind.set_gguf_parameters

    def set_all(model: Any) -> None:
        set_others(model)
        model.gguf_writer.add_rope_freq_base(rope_theta)

    kind.set_gguf_parameters = set_all


def widened(checkpoint: Path, target: Path, config: dict[str, Any]) -> None:
    """Writes a Bamba checkpoint of the same function whose state layers have twice the inner width, as
    llama.cpp's loader demands: a second group of heads, whose weights are zeros."""
    inner = config["mamba_expand"] * config["hidden_size"]
    group, heads = config["mamba_n_groups"] * config["mamba_d_state"], config["mamba_n_heads"]

    def with_zeros(weights: torch.Tensor, sizes: list[int]) -> torch.Tensor:
        parts = torch.split(weights, sizes)
        return torch.cat([each for part in parts for each in (part, torch.zeros_like(part))])

    def wide(name: str, weights: torch.Tensor) -> torch.Tensor:
        if name.endswith("mamba.in_proj.weight"):
            return with_zeros(weights, [inner, inner, group, group, heads])
        if "mamba.conv1d" in name:
            return with_zeros(weights, [inner, group, group])
        if name.endswith(("mamba.A_log", "mamba.D", "mamba.dt_bias")):
            return with_zeros(weights, [heads])
        if name.endswith("mamba.norm.weight"):
            return torch.cat([weights, weights])
        if name.endswith("mamba.out_proj.weight"):
            return torch.cat([weights, torch.zeros_like(weights)], 1)
        return weights

    tensors = load_file(checkpoint / "model.safetensors")
    made = {name: wide(name, weights).contiguous() for name, weights in tensors.items()}
    save_file(made, target / "model.safetensors")
    twice = ("mamba_expand", "mamba_n_groups", "mamba_n_heads")
    config |= {name: 2 * config[name] for name in twice}


def write_adapter(file: Path, architecture: str, alpha: float, tensors: Tensors) -> None:
    """Writes a LoRA in float32."""
    writer = gguf.GGUFWriter(file, architecture)
    writer.add_type("adapter")
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", alpha)
    for name, values in tensors:
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def divide(folder: Path) -> None:
    """Writes the model as a base and an adapter: of random signs, times a power of two that makes its
    product as large as the weights, so that without it, or with half of it, other tokens follow."""
    shutil.copy(folder / "model.gguf", folder / "base.gguf")
    base = gguf.GGUFReader(folder / "base.gguf", "r+")
    signs = np.random.default_rng(0)

    def taken_out() -> Tensors:
        for tensor in (each for each in base.tensors if each.name.endswith(ADAPTED)):
            whole = tensor.data.copy()
            size = np.exp2(np.round(np.log2(np.abs(whole[whole != 0]).mean()) / 2))
            down, up = (
                (size * signs.choice((-1, 1), shape)).astype(np.float32)
                for shape in ((RANK, whole.shape[1]), (whole.shape[0], RANK))
            )
            tensor.data[:] = whole - up @ down
            yield f"{tensor.name}.lora_a", down
            yield f"{tensor.name}.lora_b", up

    architecture = base.get_field("general.architecture").contents()
    write_adapter(folder / "adapter.gguf", architecture, RANK, taken_out())


def in_4_bits() -> str:
    """Lets the converter, which knows 8 bits, write 4 instead; returns the type to ask it for."""
    types = gguf.GGMLQuantizationType
    quantize, add_tensor = gguf.quants.quantize, gguf.GGUFWriter.add_tensor
    shape_of = gguf.quant_shape_from_byte_shape

    def smaller(kind: Any) -> Any:
        return types.Q4_0 if kind == types.Q8_0 else kind

    def add(writer: Any, name: str, data: Any, raw_dtype: Any = None, **more: Any) -> None:
        add_tensor(writer, name, data, raw_dtype=smaller(raw_dtype), **more)

    gguf.quants.quantize = lambda data, kind: quantize(data, smaller(kind))
    gguf.quant_shape_from_byte_shape = lambda shape, kind: shape_of(shape, smaller(kind))
    gguf.GGUFWriter.add_tensor = add
    return "q8_0"


def convert_adapter(source: Path, target: Path, config: dict[str, Any]) -> None:
    """Writes an adapter of PEFT's for a Llama as GGUF. Rows of queries and keys stand as the
    converter puts them: the two of a rotated pair together."""
    given = json.loads((source / "adapter_config.json").read_text(encoding="utf-8"))
    heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config["num_hidden_layers"])

    def renamed() -> Tensors:
        for name, weights in load_file(source / "adapter_model.safetensors").items():
            layer, kind = re.match(r".*(model\.layers\..*)\.lora_(A|B)\.", name).groups()
            num_heads = heads.get(layer.rpartition(".")[2]) if kind == "B" else None
            rows = LlamaModel.permute(weights, num_heads, num_heads) if num_heads else weights
            values = rows.float().contiguous().numpy()
            yield f"{names.get_name(layer)}.weight.lora_{kind.lower()}", values

    write_adapter(target, "llama", given["lora_alpha"], renamed())


def main() -> None:
    target = Path(FOLDER)
    target.mkdir()
    config = json.loads(Path(CHECKPOINT, "config.json").read_text(encoding="utf-8"))
    (architecture,) = config["architectures"]
    for kind in get_model_class(architecture).__mro__:
        if "set_vocab" in vars(kind):
            kind.set_vocab = set_vocab
    with tempfile.TemporaryDirectory() as scratch:
        source = Path(scratch)
        for name in ("config.json", "model.safetensors"):
            shutil.copy(Path(CHECKPOINT, name), source)
        if "n_positions" in config:
            config.setdefault("n_ctx", config["n_positions"])
        if architecture == "Gemma2ForCausalLM" and HOW == "mended":
            with_rope_theta(get_model_class(architecture), config["rope_parameters"]["rope_theta"])
        if architecture == "BambaForCausalLM":
            config.setdefault("attn_rotary_emb", rotated_dimensions(config))
            if HOW == "mended":
                LlamaModel.permute = staticmethod(in_pairs(config["attn_rotary_emb"]))
            if config["mamba_expand"] * config["hidden_size"] != 2 * config["hidden_size"]:
                widened(Path(CHECKPOINT), source, config)
        (source / "config.json").write_text(json.dumps(config), encoding="utf-8")
        file = str(target / "model.gguf")
        kind = in_4_bits() if TYPE == "q4_0" else TYPE
        sys.argv[1:] = [str(source), "--outfile", file, "--outtype", kind, "--no-lazy"]
        if architecture == "Qwen3NextForCausalLM" and HAS_MTP:  # there is no layer for it
            sys.argv.append("--no-mtp")
        convert_hf_to_gguf.main()
    if TYPE == "f32":
        divide(target)
        for each in sorted(Path(CHECKPOINT, "adapters").glob("*")):
            convert_adapter(each, target / f"adapter-{each.name}.gguf", config)
            shutil.copytree(each, target / f"adapter-{each.name}")


main()
