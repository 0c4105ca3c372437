"""Batched answers of a Hugging Face model to prompts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from paceline.core.errors import ConfigError
from paceline.generation import codes
from paceline.models.heads.sequence_classification import auto_class
from paceline.models.loading.model_source import refuse_hub_attention
from paceline.models.special_tokens import end_tokens
from paceline.plan.model.family import composites
from paceline.protocols.roles import Role

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedTokenizerBase, TextStreamer

    from paceline.protocols.model import HFModel

Write = Callable[[str], None]
Agree = Callable[[Tensor], Tensor]
NOTHING: Mapping[str, Tensor] = {}
Message = Mapping[str, str]  # {"role": "user" | "assistant" | "system", "content": text}


@dataclass(frozen=True)
class Sampling:
    """How the next token is chosen: ``temperature`` 0 is greedy.

    ``top_k`` 0 and ``top_p`` 1 do not truncate.
    """

    max_new_tokens: int = 128
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0

    def arguments(self) -> dict[str, float | None]:
        """Return the keyword arguments of ``model.generate``, without the penalties of the model's generation
        config, as in rollouts and the server.
        """
        sampled = self.temperature > 0
        return {
            "max_new_tokens": self.max_new_tokens,
            "repetition_penalty": 1.0,
            "do_sample": sampled,
            "temperature": self.temperature if sampled else None,
            "top_p": self.top_p if sampled else None,
            "top_k": self.top_k if sampled else None,
        }


def load_folder(
    folder: Path, weights: Callable[[Path], HFModel] | None = None
) -> tuple[HFModel, PreTrainedTokenizerBase]:
    """Load (model, tokenizer) from a Hugging Face folder, fp32, in evaluation mode; the model by ``weights``
    where they are elsewhere. Raises ConfigError.
    """
    if not (folder / "config.json").is_file():
        raise ConfigError(
            codes.GENERATION_NO_MODEL(
                "there is no model here",
                str(folder),
                "no config.json",
                "give a run directory, or a folder written by `paceline export RUN --to DIR`",
            )
        )
    from transformers import AutoTokenizer
    from transformers.utils.logging import disable_progress_bar

    refuse_hub_attention(_config(folder), str(folder))
    no_bars: Callable[[], None] = disable_progress_bar  # in a chat
    no_bars()
    try:
        tokenizer = AutoTokenizer.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)
        model = weights(folder) if weights is not None else _loaded(folder)
    except (OSError, ValueError) as error:
        reason = str(error).split("\n")[0][:300]
        raise ConfigError(
            codes.GENERATION_NO_MODEL(
                "the model in this folder cannot be loaded", str(folder), reason, "export it again"
            )
        ) from error
    model.train(False)
    return model, tokenizer


def _loaded(folder: Path) -> HFModel:
    """Return the folder's model in fp32. Raises ValueError where the folder lacks weights of its class, which
    Transformers would draw at random.
    """
    from transformers import AutoConfig

    path = str(folder)
    config = AutoConfig.from_pretrained(path, trust_remote_code=False, local_files_only=True)
    whole = str(config.model_type) in composites()
    model, info = auto_class(Role.POLICY, whole).from_pretrained(
        path,
        config=config,
        revision="main",
        dtype=torch.float32,
        attn_implementation=None,
        use_safetensors=True,
        output_loading_info=True,
        local_files_only=True,
        trust_remote_code=False,
    )
    missing = sorted(info["missing_keys"])
    if missing:
        names = f"{', '.join(missing[:3])}{', …' if missing[3:] else ''}"
        raise ValueError(f"its files lack {len(missing)} weights of {type(model).__name__}: {names}")
    return model


def _config(folder: Path) -> PreTrainedConfig | None:
    from transformers import AutoConfig

    try:
        return AutoConfig.from_pretrained(str(folder), trust_remote_code=False, local_files_only=True)
    except (OSError, ValueError):
        return None  # loading the model reports the error


def answer(
    model: HFModel,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[list[int]],
    sampling: Sampling,
    *,
    batch_size: int = 64,
) -> list[str]:
    """Return the answer to each prompt (token ids), special tokens removed.

    Greedy answers do not depend on ``batch_size``: prompts are padded on the left and the padding is masked.
    Raises ConfigError if a prompt leaves no room for an answer.
    """
    _check_room(model, prompts)
    order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))  # sort by length: less padding
    answers = [""] * len(prompts)
    for start in range(0, len(order), batch_size):
        batch = order[start : start + batch_size]
        texts = _answer_batch(model, tokenizer, [prompts[i] for i in batch], sampling)
        for index, text in zip(batch, texts, strict=True):
            answers[index] = text
    return answers


def answer_streamed(
    model: HFModel,
    tokenizer: PreTrainedTokenizerBase,
    prompt: list[int],
    sampling: Sampling,
    write: Write,
    *,
    seed: int | None = None,
    agree: Agree | None = None,
    beside: Mapping[str, Tensor] = NOTHING,
) -> str:
    """Return the answer to a prompt, and give its text to ``write`` part by part while it is generated.

    Equals the result of ``answer``. ``seed``: of the sampling noise; ``beside``: what the model reads
    with the tokens. ``agree`` returns the scores of the next token [1, V] on which the processes that share
    the model agree. Raises ConfigError.
    """
    from transformers import TextStreamer

    class Stream(TextStreamer):
        def on_finalized_text(self, text: str, stream_end: bool = False) -> None:
            if text:
                write(text)

    _check_room(model, [prompt])
    if seed is not None:
        torch.manual_seed(seed)
    stream = Stream(tokenizer, skip_prompt=True, skip_special_tokens=True)  # type: ignore[no-untyped-call]
    return _answer_batch(model, tokenizer, [prompt], sampling, stream, agree, beside)[0]


@torch.no_grad()
def _answer_batch(
    model: HFModel,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[list[int]],
    sampling: Sampling,
    streamer: TextStreamer | None = None,
    agree: Agree | None = None,
    beside: Mapping[str, Tensor] = NOTHING,
) -> list[str]:
    pad = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else (tokenizer.eos_token_id or 0)
    width = max(len(p) for p in prompts)
    ids = torch.full((len(prompts), width), pad, dtype=torch.long)
    # Padding on the left: all rows then continue at the same column.
    mask = torch.zeros_like(ids)
    for row, prompt in enumerate(prompts):
        ids[row, width - len(prompt) :] = torch.tensor(prompt)
        mask[row, width - len(prompt) :] = 1
    device = next(model.parameters()).device
    processors: dict[str, Any] = {"logits_processor": [lambda _, scores: agree(scores)]} if agree else {}
    sequences = model.generate(
        ids.to(device),
        attention_mask=mask.to(device),
        pad_token_id=pad,
        eos_token_id=end_tokens(model, [tokenizer.eos_token_id]) or None,
        use_cache=True,
        streamer=streamer,
        **processors,
        **beside,
        **sampling.arguments(),
    )
    # Every row's answer begins at the common width.
    return [str(text) for text in tokenizer.batch_decode(sequences[:, width:], skip_special_tokens=True)]


def _check_room(model: HFModel, prompts: Sequence[list[int]]) -> None:
    """Raise ConfigError for conversations that leave no room for a single new token."""
    # Models without such a limit (states in place of positions) have no attribute.
    limit = getattr(model.config, "max_position_embeddings", None)
    longest = max((len(p) for p in prompts), default=0)
    if limit is not None and longest >= limit:
        raise ConfigError(
            codes.GENERATION_TOO_LONG("", f"{longest} tokens, but the model has {limit} positions")
        )
