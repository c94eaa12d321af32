"""openvino-genai 2026.4.1: prefix caching without dynamic_split_fuse needs a block more than the
pool has."""

from setup_openvino import asking, finish, ids, pipeline


def ends(prompts: list[list[int]], prefix_caching: bool) -> list[str]:
    """Returns how the requests end that ask for these prompts a second time."""
    limits = {"num_kv_blocks": 1, "max_num_seqs": 1, "dynamic_split_fuse": False}
    pipe = pipeline(**limits, enable_prefix_caching=prefix_caching)
    handles = []
    for call in range(2):
        for number, prompt in enumerate(prompts):
            handles.append(pipe.add_request(2 * call + number, ids(prompt), asking(1)))
        try:
            finish(pipe)
        except RuntimeError as error:
            return [f"step raised {str(error).split(' failed')[0]}"] * 2
    return [handle.get_status().name for handle in handles[2:]]


is_wrong = False
for prompts in ([[197], [197, 215]], [[5, 6], [5, 6]]):
    got, right = ends(prompts, True), ends(prompts, False)
    print(f"{prompts}: {got}, without prefix caching {right}")
    is_wrong |= got != right
raise SystemExit(is_wrong)
