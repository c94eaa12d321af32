"""openvino-genai 2026.4.1: with prefix caching, a block that requests share is written without a copy."""

from setup_openvino import asking, drawn, finish, ids, pipeline

PROMPT, TURNS = drawn(0, 20), drawn(1, 2, 3)


def answers(prefix_caching: bool, dynamic_split_fuse: bool) -> list[list[int]]:
    """Of two turns that go on from one answer at once."""
    limits = {"enable_prefix_caching": prefix_caching, "dynamic_split_fuse": dynamic_split_fuse}
    pipe = pipeline(num_kv_blocks=20, **limits)
    first = pipe.add_request(0, ids(PROMPT), asking(6))
    said = PROMPT + finish(pipe, first)[0]
    handles = [pipe.add_request(i, ids(said + turn), asking(6)) for i, turn in enumerate(TURNS, start=1)]
    return finish(pipe, *handles)


wrong = False
for fused in (True, False):
    got, right = answers(True, fused), answers(False, fused)
    print(f"dynamic_split_fuse={fused}: got {got[0]} and {got[1]}, should be {right[0]} and {right[1]}")
    wrong |= got != right
raise SystemExit(wrong)
