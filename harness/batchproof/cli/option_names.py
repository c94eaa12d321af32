"""The options of the pytest plugin, which it adds where one of them awakens it (`batchproof.plugin`),
and the keys of a configuration, which are their long names with underscores.

This module imports nothing: pytest imports it in every run on a machine where the package is installed.
"""

CONFIG, NO_CONFIG = "--config", "--no-config"
OPTIONS = frozenset(
    (
        *("--engine", "--model", "--device", "--dtype", "--compute-dtype", "--kv-cache-dtype"),
        "--serves",
        *("--xfails", "--diagnose-for", "--repro", "--table", "--journal", "--engine-time-limit"),
        *("--requirement", "--verdict"),
        *("--artifacts", "--isolate", "--no-isolate", CONFIG, NO_CONFIG),
        *("--workload", "--num-requests", "--prompt-len", "--cap", "--slots", "--seed", "--shape"),
        *("--laps", "--verify", "--memory", "--no-memory", "--threads", "--results"),
    )
)
OTHERS = {"hypothesis_profile": "--hypothesis-profile", "jobs": "--numprocesses"}  # of other plugins
NEGATIONS = {each for each in OPTIONS if each.startswith("--no-")}
NO_KEYS = {CONFIG, "--requirement", "--xfails"} | NEGATIONS
SWITCHES = {f"--{each[5:]}" for each in NEGATIONS} - NO_KEYS  # keys that are true or false
JOBS, RULE_OF_JOBS = r"\d+|auto|logical", "a whole number, 'auto' or 'logical'"  # xdist has no words
FLAGS = {flag[2:].replace("-", "_"): flag for flag in sorted(OPTIONS - NO_KEYS)} | OTHERS
EXPECTED, SERVED = "expected_failures", "serves"
KEYS = frozenset((*FLAGS, EXPECTED))
