"""An engine of another repository, which sees only the installed package; a workflow runs the wheel
on it. It pads a batch and computes it anew for each token."""

import torch

from batchproof.api import Completion, FinishReason, Limits


class Engine:
    def __init__(self, model, config):
        self.model, self.limits = model, Limits.of(model, config)

    def generate(self, requests):
        refusals = self.limits.refusals(requests)
        rows = {i: list(r.prompt_token_ids) for i, r in enumerate(requests) if not refusals[i]}
        ends = {}
        while live := [i for i in rows if i not in ends]:
            for i, token in zip(live, self.next_tokens([rows[i] for i in live]), strict=True):
                rows[i].append(token)
                length = len(rows[i]) - len(requests[i].prompt_token_ids)
                if token in requests[i].eos_token_ids:
                    ends[i] = (length, FinishReason.STOP)
                elif length == requests[i].max_new_tokens:
                    ends[i] = (length, FinishReason.LENGTH)
        return [
            Completion.refused(r.request_id, refusals[i])
            if refusals[i]
            else Completion(r.request_id, tuple(rows[i][-ends[i][0] :]), ends[i][1])
            for i, r in enumerate(requests)
        ]

    @torch.inference_mode()
    def next_tokens(self, rows):
        width = max(map(len, rows))
        ids = torch.tensor([row + [0] * (width - len(row)) for row in rows])
        logits = self.model(input_ids=ids).logits
        return [int(logits[k, len(row) - 1].argmax()) for k, row in enumerate(rows)]
