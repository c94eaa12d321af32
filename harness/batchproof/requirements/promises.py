"""The numbered standard: what batching must preserve. Every test, fault and case names one of these
promises."""

from enum import Enum


class Promise(Enum):
    """`P1` ... `P23`, each with a short name and the promise in a sentence."""

    P1 = ("parity", "token_ids equal per-prompt greedy generation, token for token")
    P2 = ("caps", "never more than max_new_tokens, and exactly that many unless an EOS came first")
    P3 = ("stop", "the first EOS ends the sequence and is its last token; the finish reason says so")
    P4 = ("order", "one completion per request, in input order, ids preserved")
    P5 = ("isolation", "a request's answer does not depend on its neighbours")
    P6 = ("mask", "a query attends to exactly the keys of its own sequence up to itself")
    P7 = ("positions", "positions start at 0 in each sequence and continue from what is cached")
    P8 = ("reuse", "the n-th call answers as the first; a slot's next tenant sees nothing of the last")
    P9 = ("scheduling", "freed slots are filled in the next step, first come first served, in limits")
    P10 = ("liveness", "every run ends in a bounded number of steps, whatever stands in the queue")
    P11 = ("accounting", "free and used blocks add up at every step, and all are free at the end")
    P12 = ("bad input", "a bad request alone gets an error naming value and rule")
    P13 = ("cancel", "abort frees everything in any state and changes no one else's tokens")
    P14 = ("stream", "a request's events add up to its completion, each token once")
    P15 = ("no side effects", "model, settings, RNG and requests are left as they were")
    P16 = ("determinism", "the same call twice gives the same answer")
    P17 = ("speculation", "speculative decoding answers as the model alone, whatever is drafted")
    P18 = ("logprobs", "logprobs are those of the model, ranked, and of the right request and step")
    P19 = ("sampling", "tokens are chosen by the request's own parameters, and by no one else's")
    P20 = ("invariance", "answers depend on batch, order and schedule no more than the engine declares")
    P21 = ("adapters", "an answer is that of the model with the request's own adapter, and no other's")
    P22 = ("structured", "each token lies in its own request's grammar, and is the best that does")
    P23 = ("lifecycle", "after sleep, new weights or a cleared cache no answer is of what was before")

    def __init__(self, title: str, sentence: str) -> None:
        self.title = title
        self.sentence = sentence

    @property
    def id(self) -> str:
        """The number, as `P1`."""
        return self.name

    @property
    def is_shown_by_a_trace(self) -> bool:
        """Whether only a trace shows a breach. On an engine without one, a test of such a promise
        compares tokens, and counts for P1."""
        return self in (Promise.P9, Promise.P11)

    def __str__(self) -> str:
        return f"{self.name} {self.title}"
