"""llama.cpp's server: n_predict 0, and max_tokens 0, make one token instead of none."""

from setup_llama import asked, converted, served, tiny

prompt = [5, 6, 7]
with served(converted(tiny())) as address:
    own = asked(address, "/completion", {"prompt": prompt, "n_predict": 0, "temperature": 0})
    body = {"prompt": prompt, "max_tokens": 0, "temperature": 0}
    openai = asked(address, "/v1/completions", body)
nums = own["tokens_predicted"], openai["usage"]["completion_tokens"]
print(f"/completion, n_predict 0: {nums[0]} token, {own['content']!r}; should be 0")
print(f"/v1/completions, max_tokens 0: {nums[1]} token, {openai['choices'][0]['text']!r}; should be 0")
raise SystemExit(any(nums))
