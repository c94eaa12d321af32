"""Two managers of transformers' continuous batching on one model leave `is_causal=False` in its config.

The threads may need some rounds.
"""

import time

import torch
from setup_cb import model, new_manager

torch.set_num_threads(1)
before = getattr(model.config, "is_causal", "not there")
managers = [new_manager(num_blocks=64, max_batch_tokens=64) for _ in range(2)]
for manager in managers:
    manager.start()
after, rounds, deadline = before, 0, time.monotonic() + 60
while after == before and time.monotonic() < deadline:
    rounds += 1
    for manager in managers:
        manager.add_request([61, 7, 33, 90], request_id=f"r{rounds}", max_new_tokens=40)
    for manager in managers:
        while manager.get_result(timeout=1) is None and manager.is_running():
            pass
    time.sleep(0.05)  # both are idle now
    after = getattr(model.config, "is_causal", "not there")
for manager in managers:
    manager.stop()

print(f"  config.is_causal: {before} before, {after} after {rounds} rounds of two requests")
is_broken = after != before
print("REPRODUCED: the model's config is changed" if is_broken else "not reproduced")
raise SystemExit(is_broken)
