"""openvino-genai 2026.4.1: token ids and positions that the model lacks are answered."""

from setup_openvino import asking, drawn, ids, pipeline

pipe = pipeline(num_kv_blocks=40)


def answer(prompt: list[int], cap: int) -> list[int] | None:
    """None: refused."""
    try:
        (result,) = pipe.generate([ids(prompt)], [asking(cap)])
    except (RuntimeError, ValueError):
        return None
    return result.m_generation_ids[0]


wrong = False
for prompt in ([1, 256, 2], [1, -1], [1, 10**9, 2], [1, 2**40, 2]):
    got = answer(prompt, 3)
    print(f"prompt {prompt}: {'refused' if got is None else f'answered {got}'}, should be refused")
    wrong |= got is not None
got = answer(drawn(0, 250), 20) or []
print(f"250 tokens and a cap of 20: {len(got)} tokens, should be refused or end after 7")
wrong |= len(got) > 7  # the last token of an answer is never fed
raise SystemExit(wrong)
