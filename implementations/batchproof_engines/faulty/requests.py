"""Bad requests that are accepted, lost, or harm others; aborts that leave something behind."""

from collections.abc import Sequence as Seq
from dataclasses import replace

from batchproof.api import Completion, Limits, Request
from batchproof.findings.causes import Cause
from batchproof.requirements.promises import Promise
from batchproof_engines.faulty.fault import planted
from batchproof_engines.faulty.scheduling import Miscounting
from batchproof_engines.ragged.delayed import HoldingEngine
from batchproof_engines.ragged.engine import RaggedEngine
from batchproof_engines.ragged.scheduler import Scheduler, Sequence


@planted(Promise.P12, Cause.INPUT, "vllm-project/vllm#7632")
class BadRequestTakesItsNeighboursDown(RaggedEngine):
    """One bad request in a call makes the engine refuse all requests of the call."""

    def generate(self, requests: Seq[Request]) -> list[Completion]:
        refusals = filter(None, map(self._scheduler.refusal, requests))
        refusal = next(refusals, None)
        if refusal is None:
            return super().generate(requests)
        return [Completion.refused(request.request_id, refusal) for request in requests]


@planted(Promise.P12, Cause.INPUT, "vllm-project/vllm#10583")
class LiveIdsInARing(Scheduler):
    """The ids of the last 128 live requests are remembered: an older one is taken twice."""

    def is_live(self, request_id: str) -> bool:
        live = [seq.request_id for seq in (*self.running, *self.waiting)]
        return request_id in live[-128:]


@planted(Promise.P12, Cause.INPUT, "vllm-project/vllm#10583")
class DuplicateIdOverwrites(RaggedEngine):
    """Requests are kept in a dict by id: of two live ones the later replaces the earlier."""

    def add(self, request: Request) -> None:
        if self._scheduler.abort(request.request_id):
            self._caches.pop(request.request_id, None)
        super().add(request)

    def generate(self, requests: Seq[Request]) -> list[Completion]:
        by_id = {request.request_id: request for request in requests}
        completions = {each.request_id: each for each in super().generate(list(by_id.values()))}
        return [completions[request.request_id] for request in requests]


@planted(Promise.P12, Cause.INPUT, "ray-project/ray#42705")
class RefusalAloneIsNeverDelivered(RaggedEngine):
    """The engine reports that it has finished while the ERROR event of a bad request is undelivered."""

    @property
    def has_unfinished(self) -> bool:
        return bool(self._scheduler.waiting or self._scheduler.running)


@planted(Promise.P12, Cause.INPUT, "vllm-project/vllm#23683")
class FullContextIsRefused(Scheduler):
    """A request that fills the context to its last place is refused (>= instead of >)."""

    def refusal(self, request: Request) -> str | None:
        num_tokens = len(request.prompt_token_ids) + request.max_new_tokens
        if num_tokens == self._limits.max_model_len:
            return f"{num_tokens} tokens, but the context holds {self._limits.max_model_len}"
        return super().refusal(request)


@planted(Promise.P12, Cause.INPUT, "jaylfc/taOS#1738")
class RefusalSaysNothing(Scheduler):
    """Every bad request is refused in the same words, which say nothing of what is wrong."""

    def refusal(self, request: Request) -> str | None:
        return super().refusal(request) and "Bad Request"


@planted(Promise.P12, Cause.INPUT, "vllm-project/vllm#2163")
class WholePoolIsRefused(Scheduler):
    """A request that needs every block of the pool is refused: one block is held back unused."""

    def _pool_refusal(self, request: Request) -> str | None:
        needed = self._num_blocks(len(request.prompt_token_ids) + request.max_new_tokens - 1)
        if needed == self._config.num_blocks:
            return f"it needs {needed} blocks of KV cache, but the pool has {needed - 1}"
        return super()._pool_refusal(request)


class _Mending(Scheduler):
    """Alters a request before it is checked."""

    def _mend(self, request: Request) -> Request:
        raise NotImplementedError

    def refusal(self, request: Request) -> str | None:
        return super().refusal(self._mend(request))

    def add(self, request: Request) -> Sequence:
        return super().add(self._mend(request))


@planted(Promise.P12, Cause.INPUT, "vllm-project/vllm#6521")
class CapOfZeroYieldsAToken(_Mending):
    """`max_new_tokens` of 0 is taken for 1, since a prefill yields a token anyway."""

    def _mend(self, request: Request) -> Request:
        return replace(request, max_new_tokens=1) if request.max_new_tokens == 0 else request


@planted(Promise.P1, Cause.INPUT, "ollama/ollama#4079")
class ContextIsDividedAmongTheSlots(_Mending):
    """The slots share the context: a prompt longer than max_model_len / slots loses its beginning."""

    def _mend(self, request: Request) -> Request:
        if self._limits.refusal(request) is not None:
            return request
        share = self._limits.max_model_len // self._config.max_num_seqs
        num_kept = max(1, share - request.max_new_tokens)
        return replace(request, prompt_token_ids=request.prompt_token_ids[-num_kept:])


@planted(Promise.P12, Cause.INPUT, "sgl-project/sglang-jax#1551")
class AddCutsTheCap(RaggedEngine):
    """`add` lowers a cap that the context cannot hold, whereas `generate` refuses the request."""

    def add(self, request: Request) -> None:
        room = Limits.of(self._model, self._config).max_model_len - len(request.prompt_token_ids)
        cap = min(request.max_new_tokens, room) if room > 0 else request.max_new_tokens
        super().add(replace(request, max_new_tokens=cap))


@planted(Promise.P12, Cause.INPUT, "vllm-project/vllm#11036")
class RefusedIdStaysLive(Scheduler):
    """The id of a refused request never becomes free: the corrected request is refused as well."""

    _refused: frozenset[str] = frozenset()

    def is_live(self, request_id: str) -> bool:
        return request_id in self._refused or super().is_live(request_id)

    def refusal(self, request: Request) -> str | None:
        is_duplicate = self.is_live(request.request_id)
        reason = super().refusal(request)
        if reason is not None and not is_duplicate:
            self._refused |= {request.request_id}
        return reason


@planted(Promise.P19, Cause.SAMPLING, "gonka-ai/gonka#1170")
class ParametersAreNotLookedAt(Scheduler):
    """A request is taken whatever its parameters are; an unknown token in them is met in the step."""

    def refusal(self, request: Request) -> str | None:
        return super().refusal(replace(request, sampling=None))


@planted(Promise.P12, Cause.INPUT, "smg-project/smg#2426")
class IdIsFreeWhileItsTokenFlies(HoldingEngine):
    """An id may be used again before the last token of its request has been delivered."""

    def add(self, request: Request) -> None:
        RaggedEngine.add(self, request)


@planted(Promise.P13, Cause.CANCEL, "sgl-project/sglang#28374")
class AbortKeepsTheBlocks(Miscounting):
    """An aborted request leaves its slot, but its blocks stay taken."""

    def abort(self, request_id: str) -> bool:
        if request_id in self.blocks.tables:
            self.lose(len(self.blocks.tables[request_id].blocks))
        return super().abort(request_id)


@planted(Promise.P13, Cause.CANCEL, "ggml-org/llama.cpp#24496")
class AbortOfAWaitingRequestIgnored(Scheduler):
    """Only running requests can be aborted; a waiting one is served to its end."""

    def abort(self, request_id: str) -> bool:
        if any(seq.request_id == request_id for seq in self.waiting):
            return False
        return super().abort(request_id)


@planted(Promise.P13, Cause.CANCEL, "NVIDIA/Megatron-LM#6916")
class LateAbortIsRemembered(RaggedEngine):
    """An abort that comes after the end of its request ends the next request of that id."""

    _late: frozenset[str] = frozenset()

    def abort(self, request_id: str) -> None:
        if not self._scheduler.is_live(request_id):
            self._late |= {request_id}
        super().abort(request_id)

    def add(self, request: Request) -> None:
        super().add(request)
        if request.request_id in self._late:
            self._late -= {request.request_id}
            self.abort(request.request_id)


@planted(Promise.P13, Cause.CANCEL, "smg-project/smg#2426")
class DuplicateHidesTheLiveRequest(RaggedEngine):
    """A duplicate that is refused takes its id's place in the table of ids: an abort misses the live
    request."""

    _hidden: frozenset[str] = frozenset()

    def add(self, request: Request) -> None:
        self._hidden |= {request.request_id}
        super().add(request)
        self._hidden -= {request.request_id}

    def abort(self, request_id: str) -> None:
        if request_id not in self._hidden:
            super().abort(request_id)
