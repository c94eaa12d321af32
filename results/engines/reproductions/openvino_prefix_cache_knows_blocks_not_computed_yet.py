"""openvino-genai 2026.4.1: with prefix caching, blocks are reused that were not computed yet."""

from setup_openvino import asking, drawn, finish, ids, pipeline

TOKENS = drawn(0, 21)


def second(prefix_caching: bool, cancelled: bool) -> list[int]:
    """The answer to 21 tokens, while 20 of them are another's prompt, of which 8 were computed."""
    pipe = pipeline(num_kv_blocks=20, max_num_batched_tokens=8, enable_prefix_caching=prefix_caching)
    first = pipe.add_request(0, ids(TOKENS[:20]), asking(6))
    pipe.step()
    if cancelled:
        first.cancel()
    handle = pipe.add_request(1, ids(TOKENS), asking(6))
    return finish(pipe, handle)[0]


wrong = False
for case, cancelled in (("still running", False), ("cancelled", True)):
    got, right = second(True, cancelled), second(False, cancelled)
    print(f"first {case}: the second got {got}, should be {right}")
    wrong |= got != right
raise SystemExit(wrong)
