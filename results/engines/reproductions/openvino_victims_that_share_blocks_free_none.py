"""openvino-genai 2026.4.1: with prefix caching, three requests that fit one by one are all given
up."""

from setup_openvino import asking, drawn, ids, pipeline

ALIKE = drawn(0, 97)
ARRIVALS = {0: (drawn(1, 11), 55), 10: (ALIKE, 1), 11: (ALIKE[:35], 1)}  # step: prompt, cap


def served(prefix_caching: bool) -> list[str]:
    """The last begins as the one before it does."""
    # 160 tokens
    pipe = pipeline(num_kv_blocks=5, max_num_batched_tokens=8, enable_prefix_caching=prefix_caching)
    handles, step = [], 0
    while step <= max(ARRIVALS) or pipe.has_non_finished_requests():
        if step in ARRIVALS:
            prompt, cap = ARRIVALS[step]
            handles.append(pipe.add_request(step, ids(prompt), asking(cap)))
        pipe.step()
        step += 1
    return [handle.get_status().name for handle in handles]


got, right = served(True), served(False)
print(f"with prefix caching: {got}, should be {right} as without")
raise SystemExit(got != right)
