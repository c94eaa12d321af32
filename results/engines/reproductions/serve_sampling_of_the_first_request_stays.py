"""transformers serve 5.23.0: with continuous batching, the sampling of the first request holds for
all."""

import json

from setup_serve import asked, served


def answers(first: dict[str, object], later: dict[str, object]) -> set[str]:
    """What one request is answered five times, on a server whose first request was another."""
    with served():
        asked("t5 t6 t7", **first)
        return {asked("t5 t6 t7", **later) for _ in range(5)}


sampled = {"generation_config": json.dumps({"do_sample": True, "temperature": 9.0}), "temperature": 9.0}
hot, cold = answers({}, sampled), answers(sampled, {})
print(f"a temperature of 9 behind a greedy request: {len(hot)} different answers, should be 5")
print(f"greedy behind a temperature of 9: {len(cold)} different answers, should be 1")
raise SystemExit(len(hot) == 1 or len(cold) > 1)
