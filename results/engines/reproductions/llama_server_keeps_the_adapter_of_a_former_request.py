"""llama.cpp's server: a prompt is continued from keys and values that another LoRA adapter has made."""

import importlib
import sys

import numpy
from setup_llama import answered, converted, scratch, served, source, tiny

sys.path.insert(0, f"{source}/gguf-py")
gguf = importlib.import_module("gguf")  # that of the converter

NUM, RANK, WIDTH = 8, 1, 64
base = converted(tiny())
prompt, other = ([(step * i + 11) % 250 + 3 for i in range(40)] for step in (37, 91))


def adapter(number: int) -> str:
    """Writes one that changes the values of both layers."""
    path = f"{scratch.name}/adapter{number}.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_type("adapter")
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", 1.0)
    drawn = numpy.random.default_rng(number)
    for layer in range(2):
        for part, shape in {"a": (RANK, WIDTH), "b": (WIDTH, RANK)}.items():
            weight = drawn.normal(size=shape).astype("float32")
            writer.add_tensor(f"blk.{layer}.attn_v.weight.lora_{part}", weight)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


adapters = ",".join(adapter(number) for number in (0, 1))


def last_answer(requests: list[tuple[list[int], int | None]], *more: str) -> list[int]:
    """Returns the last of the answers of a new server, each request with its adapter or none."""
    flags = ["-np", "1", "--lora", adapters, "--lora-init-without-apply", *more]
    with served(base, *flags) as address:
        for words, number in requests:
            chosen = {} if number is None else {"lora": [{"id": number, "scale": 1.0}]}
            answer = answered(address, words, NUM, **chosen)
    return answer


cases = {
    "adapter 1 behind adapter 0": ([(prompt, 0), (prompt, 1)], ()),
    "none behind adapter 0": ([(prompt, 0), (prompt, None)], ()),
    "adapter 1, and adapter 0 in the RAM cache": ([(prompt, 0), (other, 1), (prompt, 1)], ()),
    "the same with --cache-ram 0": ([(prompt, 0), (other, 1), (prompt, 1)], ("--cache-ram", "0")),
}
is_wrong = False
for name, (requests, flags) in cases.items():
    got, right = last_answer(requests, *flags), last_answer(requests[-1:])
    print(f"{name}: {got}, should be {right}")
    is_wrong |= got != right
raise SystemExit(is_wrong)
