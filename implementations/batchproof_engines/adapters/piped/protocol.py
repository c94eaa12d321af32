"""The names of the protocol of engines behind a pipe: its version, its operations, and the fields of
each answer.

The programs of released engines load this file as well, in environments that do not know Batchproof: it
uses the standard library only and runs on Python 3.10. `messages.py` says what the fields hold,
`docs/piped_engines.md` explains the protocol to authors of engines, and a test compares all three.
"""

VERSION = 1
_STEPS = ("trace", "counters")
ANSWERS: dict[str, tuple[str, ...]] = {  # each may instead be `error` alone
    "hello": (
        *("name", "version", "capabilities", "notes", "sampling_fields", "sampling_limits"),
        *("block_size_multiple", "grammar_kinds", "grammar_ends"),
    ),
    "build": ("unsupported", "lacks"),
    "generate": ("completions", *_STEPS),
    "close": (),
    "add": ("live",),  # this and the following: only where the program declares "stepping"
    "step": ("events", *_STEPS),
    "abort": (),
    "has_unfinished": ("has_unfinished",),
    "load_adapter": (),  # this and the next: only where it declares "adapters"
    "unload_adapter": (),
    "pause": (),  # this and the following: only where it declares what each is about
    "resume": (),
    "sleep": (),
    "wake": (),
    "clear_cache": (),
    "update_weights": (),
}
