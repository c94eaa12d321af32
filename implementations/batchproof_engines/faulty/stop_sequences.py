"""Stop sequences that end an answer elsewhere, or not at all."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import replace

from batchproof.api import FinishReason
from batchproof.findings.causes import Cause
from batchproof.requirements.promises import Promise
from batchproof_engines.faulty.fault import planted
from batchproof_engines.ragged.scheduler import Sequence

Stops = Seq[tuple[int, ...]]


class _Stopping(Sequence):
    """A sequence that looks for its stop sequences in a way of its own."""

    def append(self, token_id: int) -> None:
        """Appends the token; ends the sequence where `_is_over` says so."""
        request, asked = self.request, self.request.sampling
        self.request = replace(request, sampling=None)
        super().append(token_id)
        self.request = request
        outputs = self.output_token_ids
        stops = () if asked is None or len(outputs) < asked.min_tokens else asked.stop_token_sequences
        if stops and self._is_over(tuple(outputs), stops):
            self.finish_reason = FinishReason.STOP

    def _is_over(self, outputs: tuple[int, ...], stops: Stops) -> bool:
        raise NotImplementedError


@planted(Promise.P19, Cause.EOS, "mzau/mlx-knife#68")
class AStopIsSeenWithinOneTokenOnly(_Stopping):
    """Each new token is looked at by itself: a stop sequence of several is never seen."""

    def _is_over(self, outputs: tuple[int, ...], stops: Stops) -> bool:
        return outputs[-1:] in stops


@planted(Promise.P19, Cause.EOS, "huggingface/transformers#18444")
class AStopIsItsFirstToken(_Stopping):
    """The first token of a stop sequence ends the answer."""

    def _is_over(self, outputs: tuple[int, ...], stops: Stops) -> bool:
        return outputs[-1] in {each[0] for each in stops}


@planted(Promise.P19, Cause.EOS, "deepset-ai/haystack#5502")
class StopsInAnyOrder(_Stopping):
    """An answer ends when it holds each token of a stop sequence, wherever they stand."""

    def _is_over(self, outputs: tuple[int, ...], stops: Stops) -> bool:
        return any({*outputs}.issuperset(each) for each in stops)


@planted(Promise.P19, Cause.EOS, "ml-explore/mlx-examples#524")
class StopsWaitForTheLongest(_Stopping):
    """Stop sequences are looked for only once more tokens are produced than the longest one has."""

    def _is_over(self, outputs: tuple[int, ...], stops: Stops) -> bool:
        is_due = len(outputs) > max(map(len, stops))
        return is_due and any(outputs[-len(each) :] == each for each in stops)


@planted(Promise.P19, Cause.EOS, "huggingface/text-generation-inference#10")
class StopsAreLookedForInThePrompt(_Stopping):
    """The tokens that are searched for a stop sequence begin with the prompt."""

    def _is_over(self, outputs: tuple[int, ...], stops: Stops) -> bool:
        tokens = (*self.request.prompt_token_ids, *outputs)
        return any(tokens[-len(each) :] == each for each in stops)
