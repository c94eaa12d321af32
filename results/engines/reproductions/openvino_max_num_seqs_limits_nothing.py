"""openvino-genai 2026.4.1: with dynamic_split_fuse, the default, max_num_seqs limits nothing."""

from setup_openvino import asking, ids, pipeline


def scheduled(split: bool) -> list[int]:
    """Of four requests, how many are in each step."""
    pipe = pipeline(num_kv_blocks=20, max_num_seqs=1, dynamic_split_fuse=split)
    # A handle that is dropped cancels its request.
    handles = [pipe.add_request(number, ids([1, 2, 3]), asking(3)) for number in range(4)]
    counts = []
    while pipe.has_non_finished_requests():
        pipe.step()
        counts.append(pipe.get_metrics().scheduled_requests)
    assert all(handle.get_status().name == "FINISHED" for handle in handles)
    return counts


got = scheduled(True)
print(f"max_num_seqs 1, with dynamic_split_fuse: {got} requests in the steps, should be 1 at most")
print(f"max_num_seqs 1, without: {scheduled(False)}")
raise SystemExit(max(got) > 1)
