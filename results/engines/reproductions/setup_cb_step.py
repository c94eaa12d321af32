"""What the manager of `setup_cb` returns for prompts that share its first step."""

from setup_cb import new_manager


def outputs(asked: dict[str, list[int]], max_new_tokens: int) -> dict:
    manager = new_manager(num_blocks=8, max_batch_tokens=64)
    for name, prompt in asked.items():  # before the thread starts
        manager.add_request(prompt, request_id=name, max_new_tokens=max_new_tokens)
    manager.start()
    given = {}
    while len(given) < len(asked) and manager.is_running():
        output = manager.get_result(timeout=1)
        if output is not None:
            given[output.request_id] = output
    manager.stop()
    return given
