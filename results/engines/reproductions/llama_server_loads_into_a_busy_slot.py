"""llama.cpp's server: a request for a busy slot (`id_slot`) replaces the prompt of the request that
runs there."""

import json
import threading
from urllib.request import Request, urlopen

from setup_greedy import greedy
from setup_llama import answered, asked, converted, served, tiny

NUM = 200
model = tiny()
first = [(37 * i + 11) % 250 + 3 for i in range(40)]
running = [(91 * i + 5) % 250 + 3 for i in range(40)]
again = {"prompt": [*first, 7, 8], "n_predict": 4, "temperature": 0, "id_slot": 0}
is_wrong = False
for name, flags in {"--cache-ram 0": ["--cache-ram", "0"], "default": []}.items():
    with served(converted(model), "-np", "1", *flags) as address:
        answered(address, first, 4)
        answered(address, running, 1)  # the first leaves the slot
        body = {"prompt": running, "n_predict": NUM, "temperature": 0, "return_tokens": True, "stream": True}
        request = Request(f"{address}/completion", json.dumps(body).encode(), {"Content-Type": "application/json"})
        got = []
        other = threading.Thread(target=asked, args=(address, "/completion", again))
        with urlopen(request) as lines:
            for line in lines:
                if line.startswith(b"data: "):
                    got += json.loads(line[6:])["tokens"]
                    if not other.ident:
                        other.start()
        other.join()
    right = greedy(model, running, NUM)
    same = next((i for i, (one, two) in enumerate(zip(got, right, strict=False)) if one != two), NUM)
    then, expected = (tokens[same : same + 4] for tokens in (got, right))
    print(f"{name}: the first {same} of {NUM} tokens are right; then {then}, should be {expected}")
    is_wrong |= got != right
raise SystemExit(is_wrong)
