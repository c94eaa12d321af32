"""openvino-genai 2026.4.1: a grammar that cannot be read is taken, and then every request fails."""

import openvino_genai as genai
from setup_openvino import asking, finish, folder, ids, pipeline
from setup_openvino_tokenizer import add_tokenizer

add_tokenizer(folder)
pipe = pipeline(num_kv_blocks=40)


def like(regex: str) -> genai.GenerationConfig:
    return asking(4, eos=2, structured_output_config=genai.StructuredOutputConfig(regex=regex))


def told(*handles: object) -> str:
    try:
        return f"answered: {finish(pipe, *handles)}"
    except RuntimeError as error:
        return f"step raised: {str(error).strip().splitlines()[-1].rpartition('/')[2]}"


print("a{3} and a plain request,", told(pipe.add_request(0, ids([5, 6]), like("a{3}")), pipe.add_request(1, ids([7, 8]), asking(4))))
plain = pipe.add_request(2, ids([7, 8]), asking(4))
pipe.step()
bad = pipe.add_request(3, ids([5, 6]), like("a("))
print("the plain request again, and while it runs a(, which is added without an error")
first = told(plain, bad)
print("both,", first)
bad.cancel()
print("after a( is cancelled,", told(plain))
raise SystemExit(first.startswith("step raised"))
