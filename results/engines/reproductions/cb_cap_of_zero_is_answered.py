"""Continuous batching of transformers answers requests whose max_new_tokens is 0 or below."""

from setup_cb import new_manager

manager = new_manager(num_blocks=8, max_batch_tokens=64)
manager.start()
is_answered = False
for cap in (2, 0, -3):
    try:
        manager.add_request([61, 7, 33, 90], request_id=f"cap {cap}", max_new_tokens=cap)
    except ValueError as error:
        print(f"  max_new_tokens {cap}: refused, {error}")
        continue
    while (output := manager.get_result(timeout=1)) is None and manager.is_running():
        pass
    print(f"  max_new_tokens {cap}:", output and (output.status.name, output.generated_tokens, output.error))
    is_answered |= cap <= 0 and output is not None and output.error is None
manager.stop()
raise SystemExit(is_answered)
