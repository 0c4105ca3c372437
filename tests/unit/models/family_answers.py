"""Whether a family's answers, token by token, are drawn from the model that is trained: the log-probabilities
at which they were drawn, beside those of one forward pass over prompt and answer.
"""

from __future__ import annotations

from typing import Any

import torch
from model_families import reference_model

from paceline.core.errors import PacelineError
from paceline.generation.engine import Request, RolloutSampling
from paceline.generation.local import LocalEngine

CLOSE = 2e-5  # of log-probabilities in float32, of answers of some tokens
PROMPTS = ((5, 9, 4, 11), (7, 3), (8, 6, 12, 5, 9, 14, 3))
TOKENS = 8


@torch.no_grad()
def answers_otherwise(hf: Any) -> str:
    """What is wrong with answers that this model writes in training; empty: nothing."""
    hf.eval()
    requests = [Request(prompt, place, TOKENS) for place, prompt in enumerate(PROMPTS)]
    try:
        found = LocalEngine(hf, pad_id=0, stop_ids=()).generate(requests, RolloutSampling(temperature=1.0))
    except PacelineError as error:
        return error.diagnostics[0].found or error.diagnostics[0].what
    except (RuntimeError, TypeError, AttributeError, ValueError, IndexError, KeyError) as error:
        return f"its class does not write token by token here ({type(error).__name__}: {str(error)[:100]})"
    clean, gap = reference_model(hf), 0.0
    for request, answer in zip(requests, found, strict=True):
        whole = torch.tensor([[*request.prompt, *answer.tokens]])
        logs = torch.log_softmax(clean(input_ids=whole, use_cache=False).logits[0].float(), dim=-1)
        said = logs[len(request.prompt) - 1 : -1].gather(1, torch.tensor(answer.tokens)[:, None])[:, 0]
        gap = max(gap, float((said - torch.as_tensor(answer.logprobs)).abs().max()))
    if gap <= CLOSE:
        return ""
    return f"written token by token its log-probabilities differ by {gap:.0e} from a whole forward pass"
