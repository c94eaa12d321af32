"""llama.cpp's server: the refusal of an unknown token id names neither the id nor the vocabulary."""

from setup_llama import asked, converted, served, tiny

with served(converted(tiny())) as address:
    answer = asked(address, "/completion", {"prompt": [5, 256, 6], "n_predict": 2})
message = answer["error"]["message"]
print(f"token 256 of 0 to 255: {message!r}, should name 256 or the limit")
raise SystemExit("25" not in message)
