"""llama.cpp's server: a request that waits for a slot behind one that is refused waits for ever."""

import threading
import time

from setup_llama import asked, converted, served, tiny

PATIENCE_S = 20
long = {"prompt": [5, 6, 7], "n_predict": 1900, "temperature": 0, "ignore_eos": True}
bad = {"prompt": [5, -1], "n_predict": 4, "temperature": 0}
waiting = {"prompt": [8, 9], "n_predict": 4, "temperature": 0}
is_wrong = False
with served(converted(tiny()), "-np", "1") as address:
    for name, bodies in {"behind a long one": [long, waiting], "and a refused one": [long, bad, waiting]}.items():
        threads = [threading.Thread(target=asked, args=(address, "/completion", each), daemon=True) for each in bodies]
        for each in threads:
            each.start()
            time.sleep(0.05)  # they arrive in this order
        for each in threads[:-1]:
            each.join()
        start = time.monotonic()
        threads[-1].join(PATIENCE_S)
        is_lost = threads[-1].is_alive()
        print(f"{name}: {f'no answer within {PATIENCE_S} s' if is_lost else 'answered'} once the others are done")
        if is_lost:
            asked(address, "/completion", waiting)
            threads[-1].join(PATIENCE_S)
            print(f"after another request: {'no answer' if threads[-1].is_alive() else 'answered'}")
        is_wrong |= is_lost
raise SystemExit(is_wrong)
