"""What the engine can do, by its options."""

from __future__ import annotations

from batchproof.api import CHOOSING, Capability
from batchproof_paged.options import PACKED, SEPARATE, PagedOptions, keeps_prefixes

ALL = frozenset(Capability) - {Capability.CLOSING}
# What `batch_invariant` is for. (How many threads share a product may matter.)
BITWISE = ("batch", "order", "arrival", "chunking", "prefix", "prefill", "preemption", "speculation")
INVARIANCE = dict.fromkeys(BITWISE, "B") | dict.fromkeys(("neighbours", "restart"), "S")


def capabilities(options: PagedOptions) -> frozenset[Capability]:
    """Returns the capabilities of an engine with these options, which are resolved."""
    lacking: set[Capability] = set()
    if options.overlap:
        lacking |= CHOOSING
    if options.overlap or options.feed != PACKED:
        lacking.add(Capability.SPECULATION)  # the host verifies drafts; a state has no way back
    if not options.batch_invariant:
        lacking.add(Capability.INVARIANCE)
    if options.feed == SEPARATE:  # the model's own attention has the mask
        lacking.add(Capability.MASKING)
    if not keeps_prefixes(options):
        lacking.add(Capability.PREFIX_CACHING)
    return ALL - lacking
