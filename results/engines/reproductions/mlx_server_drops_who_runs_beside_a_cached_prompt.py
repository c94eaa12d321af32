"""MLX-LM 0.32.2: a prompt that the prompt cache of mlx_lm.server holds whole cuts off who runs
beside it."""

import time
from concurrent.futures import ThreadPoolExecutor

from setup_mlx_server import asked, served

LENGTH = 1000
is_lost = False
for name in ("a longer prompt", "the prompt with its whole answer"):
    with served(), ThreadPoolExecutor() as pool:
        alone = asked("t7 t8 t9", max_tokens=LENGTH)
        words = f"t1 t2 t3 {asked('t1 t2 t3')}"
        running = pool.submit(asked, "t7 t8 t9", max_tokens=LENGTH)
        time.sleep(0.3)  # it is in progress
        asked(words if name[0] == "t" else f"{words} t4")
        beside, after = running.result(), asked("t5 t6")
    print(f"beside {name}: {beside[:75]}, should be {alone[:20]}...; then: {after}")
    is_lost |= beside != alone
raise SystemExit(is_lost)
