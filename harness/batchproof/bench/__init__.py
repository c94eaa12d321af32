"""Benchmarks that can be believed: who is faster, on what work, by how much, and how near to the
machine's limit.

Data flows one way: a YAML file or a flag -> `BenchSpec` -> `BenchWorkload` (the very requests) ->
timed rounds of each engine, interleaved -> every answer verified -> metrics, schedule, ratios and
roofline -> the result file. A row whose answers are wrong has no figure.
"""
