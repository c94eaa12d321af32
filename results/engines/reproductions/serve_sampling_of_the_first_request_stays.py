r"""transformers serve 5.23.0: with continuous batching, the sampling of the first request holds for all.

    python -m batchproof install transformers-serve
    python -m batchproof checkpoint gpt2-random toy
    .engines/transformers-serve/bin/python \
        results/engines/reproductions/serve_sampling_of_the_first_request_stays.py toy

It exits with 1 if the failure is still there, with 0 if not. The server makes its batching manager when
the first request comes, with that request's generation config; of later ones it passes on max_tokens and
EOS ids. So a temperature, also one in a generation_config with do_sample, is ignored without a word, and
a greedy request behind a first one that is sampled is sampled. A comment in `CBGenerateManager` says so.
"""

import json
import subprocess
import sys
import time
from pathlib import Path
from urllib.error import URLError
from urllib.request import Request, urlopen

FOLDER, PORT = sys.argv[1], 8431
SAMPLED = {"generation_config": json.dumps({"do_sample": True, "temperature": 9.0}), "temperature": 9.0}
serve = [str(Path(sys.executable).with_name("transformers")), "serve", FOLDER, "--continuous-batching"]
serve += ["--cb-num-blocks", "256", "--cb-max-batch-tokens", "256", "--device", "cpu"]
serve += ["--host", "127.0.0.1", "--port", str(PORT)]
quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}


def asked(**more: object) -> str:
    body = {"model": FOLDER, "prompt": "t005 t006 t007", "max_tokens": 6, "temperature": 0, **more}
    headers = {"Content-Type": "application/json"}
    url = f"http://127.0.0.1:{PORT}/v1/completions"
    with urlopen(Request(url, json.dumps(body).encode(), headers), timeout=60) as answer:
        return str(json.load(answer)["choices"][0]["text"])


def answers(first: dict[str, object], later: dict[str, object]) -> set[str]:
    """What one request is answered five times, on a server whose first request was another."""
    server = subprocess.Popen(serve, **quiet)
    try:
        for _ in range(240):
            try:
                urlopen(f"http://127.0.0.1:{PORT}/v1/models", timeout=5).close()
                break
            except (URLError, OSError):
                time.sleep(0.5)
        asked(**first)
        return {asked(**later) for _ in range(5)}
    finally:
        server.kill()
        server.wait()


hot, cold = answers({}, SAMPLED), answers(SAMPLED, {})
print(f"a temperature of 9 behind a greedy request: {len(hot)} different answers, should be 5")
print(f"greedy behind a temperature of 9: {len(cold)} different answers, should be 1")
sys.exit(len(hot) == 1 or len(cold) > 1)
