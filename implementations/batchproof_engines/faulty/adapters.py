"""Low-rank adapters that are left out, scaled wrongly, of another request, or of an earlier load."""

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from transformers import PreTrainedModel

from batchproof.findings.causes import Cause
from batchproof.models.embedded import VARIANTS_MODEL
from batchproof.requirements.promises import Promise
from batchproof_engines.faulty.fault import planted
from batchproof_engines.lora import Adapters
from batchproof_engines.ragged.scheduler import SchedulerOutput, Sequence
from batchproof_engines.ragged_paged.blocks import BlockManager, Prefix
from batchproof_engines.ragged_paged.engine import RaggedPagedEngine

Part = TypeVar("Part", bound=type)
Rows = Iterable[tuple[str | None, int]]  # of each its adapter, and its number of tokens


def planted_in_adapters(thread: str) -> Callable[[Part], Part]:
    """Returns a decorator that registers a part of an engine that serves adapters as a fault."""
    return planted(Promise.P21, Cause.ADAPTER, thread, shows_on=VARIANTS_MODEL)


@planted_in_adapters("ggml-org/llama.cpp#26207")
class AdaptersShareTheirPrefixes(BlockManager):
    """A cached prefix is looked up by its tokens alone, whatever adapter it was computed under."""

    def prefix(self, sequence: Sequence, column: int) -> Prefix:
        return super().prefix(sequence, column)[1:]


@planted_in_adapters("vllm-project/vllm#30931")
class PrefixesOfANameOutliveItsWeights(Adapters):
    """Prefixes are cached under the name of an adapter, and found again when it stands for others."""

    def root(self, name: str | None) -> int:
        return 0 if name is None else int.from_bytes(name.encode())


@planted_in_adapters("sgl-project/sglang#8263")
class AKnownNameKeepsItsWeights(Adapters):
    """An adapter that is loaded under a name in use finds the buffer of that name, and leaves it."""

    def load(self, name: str, path: str) -> None:
        held = self._loaded.get(name)
        super().load(name, path)
        self._loaded[name] = held or self._loaded[name]


@planted_in_adapters("ikawrakow/ik_llama.cpp#1986")
class FusedGatesAreNotAdapted(Adapters):
    """Gates are computed by a fused kernel that reads the weights of the model, not those adapted."""

    def adapt(self, name: str, layer: str) -> None:
        if not layer.endswith("gate_proj"):
            super().adapt(name, layer)


@planted_in_adapters("Blaizzy/mlx-vlm#841")
class AlphaIsNotDividedByTheRank(Adapters):
    """What an adapter adds is multiplied by alpha instead of alpha / rank."""

    def scale(self, config: dict[str, Any]) -> float:
        return float(config["lora_alpha"])


@planted_in_adapters("huggingface/text-generation-inference#2180")
class DecodesAreCapturedWithoutAdapters(Adapters):
    """A step of decodes alone replays a graph that was captured before any adapter was loaded."""

    def begin(self, rows: Rows) -> None:
        known = [*rows]
        super().begin(known if any(num > 1 for _, num in known) else ())


@planted_in_adapters("leejet/stable-diffusion.cpp#1307")
class TheLastAdapterStays(Adapters):
    """A row that names no adapter gets the one that was applied last."""

    _last: str | None = None

    def begin(self, rows: Rows) -> None:
        applied: list[tuple[str | None, int]] = []
        for name, num_tokens in rows:
            self._last = name or (self._last if self._last in self._loaded else None)
            applied.append((self._last, num_tokens))
        super().begin(applied)


@planted_in_adapters("vllm-project/vllm#14497")
class SlotsInUseAreGivenAway(Adapters):
    """There are two slots for weights: a request whose adapter is in neither takes the older one, also
    from requests that are running."""

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__(model)
        self._held = ["", ""]  # the adapter of each slot
        self._slots: dict[str, int] = {}  # into which each adapter was put last
        self._num_taken = 0

    def root(self, name: str | None) -> int:
        if name is not None and name not in self._held:
            self._slots[name] = slot = self._num_taken % 2
            self._held[slot] = name
            self._num_taken += 1
        return super().root(name)

    def begin(self, rows: Rows) -> None:
        super().begin((name and self._held[self._slots[name]], num) for name, num in rows)


@planted_in_adapters("vllm-project/vllm#4995")
class ChunksHaveNoPlaceInTheMapping(RaggedPagedEngine):
    """Only rows that end in a token of the answer are in the mapping of tokens to adapters."""

    def _adapted_rows(self, plan: SchedulerOutput) -> list[tuple[str | None, int]]:
        pairs = zip(super()._adapted_rows(plan), plan.rows, strict=True)
        return [each for each, row in pairs if row.is_sampled]
