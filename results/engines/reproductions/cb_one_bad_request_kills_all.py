"""One bad request ends transformers' continuous batching for everybody."""

import logging

from setup_cb import new_manager

logging.getLogger("ContinuousBatchingLogger").setLevel(logging.CRITICAL)
bad = {
    "nothing bad": None,
    "a prompt beyond the pool": ("bad", list(range(90)) * 20),  # 1,800 tokens; the pool holds 4 x 256
    "a token beyond the vocabulary": ("bad", [1, 96, 2]),
    "an id that is live": ("good 1", [9, 8, 7, 6]),
}


def serve(request):
    manager = new_manager(num_blocks=4, max_batch_tokens=512, allow_block_sharing=False)
    for number in (1, 2):
        manager.add_request([number, 2, 3], request_id=f"good {number}", max_new_tokens=20)
    if request is not None:
        manager.add_request(request[1], request_id=request[0], max_new_tokens=4)
    manager.add_request([5, 6, 7, 8], request_id="good 3", max_new_tokens=20)
    manager.start()
    answers = {}
    while (output := manager.get_result(timeout=1)) or (manager.is_running() and len(answers) < 3):
        if output is not None:
            answers[output.request_id] = (output.status.name, len(output.generated_tokens), output.error)
    is_alive = manager.is_running()
    manager.stop(hard_stop=True)
    return answers, is_alive


num_killed = 0
for name, request in bad.items():
    answers, is_alive = serve(request)
    print(f"{name}: thread {'alive' if is_alive else 'DEAD'}")
    for request_id in sorted({"good 1", "good 2", "good 3", *answers}):
        print(f"    {request_id}: {answers.get(request_id, 'no answer')}")
    num_killed += not is_alive
print(f"{num_killed} of 3 bad requests took all others along")
raise SystemExit(num_killed == 3)
