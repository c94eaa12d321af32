"""Continuous batching of transformers answers an empty prompt with its neighbour's next token."""

from setup_cb_step import outputs

asked = {"secret 1": [61, 7, 33, 90], "empty 1": [], "secret 2": [8, 52, 17], "empty 2": []}
given = outputs(asked, max_new_tokens=1)
for name in asked:
    output = given.get(name)
    print(f"  {name}: prompt {asked[name]} -> {output and (output.status.name, output.generated_tokens, output.error)}")
is_leak = all(
    given[f"empty {n}"].generated_tokens == given[f"secret {n}"].generated_tokens != [] for n in (1, 2)
)
print("REPRODUCED: empty prompts get the token of the request before them" if is_leak else "not reproduced")
raise SystemExit(is_leak)
