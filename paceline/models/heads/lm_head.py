"""The head of a causal language model: from the trunk's hidden states at labelled positions to the required
outputs.

A plain linear head (with Gemma's softcap, Cohere's or Granite's scale) takes the fused path of
``head_kernels``. Any other is run a chunk at a time through the Hugging Face class itself, with the trunk
replaced by its finished hidden states.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from paceline.core.json_types import Json
from paceline.models.attention.kernel_choice import RowKernels
from paceline.models.heads.chunked_cross_entropy import CHUNK_BYTES, FusedNll, HeadInputs, HeadShape, nll_sums
from paceline.models.heads.token_logprobs import RequiredStats, TokenStats, entropy_of, largest
from paceline.models.parallel.tp_regions import local
from paceline.protocols.batch import Batch
from paceline.protocols.roles import Output

if TYPE_CHECKING:
    from paceline.protocols.model import HFModel

LIKELIEST = 20  # tokens, of ``Output.LIKELIEST_ENTROPY`` (arXiv:2601.02151)
_ENTROPIES = (Output.ENTROPY, Output.LIKELIEST_ENTROPY)


class _Output:
    """A trunk's output: hidden states, and None for any other field that a class reads (router logits, cross
    attentions, …).
    """

    def __init__(self, states: Tensor | None) -> None:
        self.last_hidden_state = states

    def __getattr__(self, name: str) -> None:
        if name.startswith("__"):
            raise AttributeError(name)

    def __getitem__(self, index: int) -> Tensor | None:
        return (self.last_hidden_state,)[index]


class _Finished(nn.Module):
    """Replaces the trunk in the class's forward: returns hidden states that were computed before.

    Classes that read attributes of the trunk (OPT calls ``model.decoder``, Falcon-H1 reads
    ``model.lm_head_multiplier``) get the trunk's own, except that ``decoder`` is this module too.
    """

    def __init__(self, trunk: nn.Module) -> None:
        super().__init__()
        self.states: Tensor | None = None
        # a plain attribute, so that its parameters are not registered here
        vars(self)["_trunk"] = trunk

    def __getattr__(self, name: str) -> Any:
        return self if name == "decoder" else getattr(self.__dict__["_trunk"], name)

    def forward(self, *_: Any, **__: Any) -> _Output:
        """Return the hidden states as a trunk's output."""
        return _Output(self.states)


class OwnHead:
    """The head as the Hugging Face class computes it: hidden [N, H] -> logits [N, V]."""

    def __init__(self, hf: HFModel) -> None:
        self._shell = copy.copy(hf)
        self._shell._modules = dict(hf._modules)
        self._finished = _Finished(hf.base_model)
        self._shell._modules[hf.base_model_prefix] = self._finished

    def __call__(self, hidden: Tensor) -> Tensor:
        """Return the logits of these positions, through the class's own forward."""
        self._finished.states = hidden[None]
        try:
            ids = torch.zeros(1, hidden.shape[0], dtype=torch.long, device=hidden.device)
            # Not a call of the module: an engine's hooks are the model's own, and it is inside of it
            return self._shell.forward(input_ids=ids, use_cache=False).logits[0]
        finally:
            self._finished.states = None


class Vocabulary(Protocol):
    """Computes the fused losses over the vocabulary: all of it on this rank, or a shard
    (``vocab_parallel.VocabularyPart``).
    """

    def nll(self, inputs: HeadInputs, correct: bool) -> tuple[Tensor, Tensor]: ...

    def stats(self, inputs: HeadInputs, required: RequiredStats) -> tuple[Tensor, Tensor, Tensor]: ...


class WholeVocabulary:
    """The losses of ``head_kernels`` and ``token_stats``, on a rank that holds the whole head."""

    def nll(self, inputs: HeadInputs, correct: bool) -> tuple[Tensor, Tensor]:
        """Return (Σ -log p(label), number of correct argmaxes)."""
        return (FusedNll.apply if torch.is_grad_enabled() else nll_sums)(*inputs, correct)

    def stats(self, inputs: HeadInputs, required: RequiredStats) -> tuple[Tensor, Tensor, Tensor]:
        """Return (log p(label) [L], entropy [L], number of correct argmaxes)."""
        return TokenStats.apply(*inputs, required)


class Head:
    """Computes the required outputs. ``fused`` is whether the fused path is taken, ``reason`` why,
    ``vocabulary`` which columns this rank computes.
    """

    shape: HeadShape

    def __init__(
        self,
        hf: HFModel,
        chunk_bytes: int = CHUNK_BYTES,
        temperature: float = 1.0,
        kernels: RowKernels | None = None,
    ) -> None:
        """All outputs are those of softmax(logits / ``temperature``): the distribution that tokens were
        sampled from. ``kernels``: of the root module, for the loss.
        """
        self.linear = hf.get_output_embeddings()
        self._own = OwnHead(hf)
        self.chunk_bytes = chunk_bytes
        self.vocabulary: Vocabulary = WholeVocabulary()
        self.shape = replace(_shape(hf.config.to_dict(), chunk_bytes), kernels=kernels)
        self._temperature, self._scale = temperature, self.shape.scale
        if self.shape.softcap is None:
            self.shape = replace(self.shape, scale=self._scale / temperature)
        self.choose(hf)

    def choose(self, hf: HFModel) -> None:
        """Choose between the fused head and the class's own, by a probe."""
        self.fused = isinstance(self.linear, nn.Linear) and self._matches(hf)
        self.reason = (
            "linear head: fused"
            if self.fused
            else f"{type(hf).__name__} has its own head: chunked, through its class"
        )
        if self.fused and self.shape.softcap is not None and self._temperature != 1.0:
            # the fused kernels scale before the cap
            self.fused, self.reason = False, "softcap and a sampling temperature: chunked, through its class"

    @torch.no_grad()
    def _matches(self, hf: HFModel) -> bool:
        """Return whether the fused form equals the class's own logits on a probe (assumed for weights on the
        meta device).
        """
        weight, bias = self.linear.weight, self.linear.bias
        if weight.device.type == "meta":
            return True
        probe = torch.randn(3, weight.shape[1], generator=torch.Generator().manual_seed(0)).to(weight)
        # the last row is large: a cap that the config does not name shows there
        probe *= torch.tensor([[4.0], [4.0], [400.0]]).to(probe)
        try:
            expected = self._own(probe)
        except (TypeError, RuntimeError, AttributeError, ValueError):
            return False
        raw = nn.functional.linear(probe, weight, bias) * self._scale
        if self.shape.softcap is not None:
            raw = torch.tanh(raw / self.shape.softcap) * self.shape.softcap
        return expected.shape == raw.shape and torch.allclose(expected, raw, rtol=1e-4, atol=1e-5)

    def __call__(self, hidden: Tensor, batch: Batch, required: frozenset[Output]) -> dict[str, Tensor]:
        """hidden [1, T, H] -> the required outputs (see ``Output``) at the batch's labelled positions."""
        flat, labels, places = hidden.flatten(0, 1), batch.labels.flatten(), batch.label_places()
        if places.numel() != labels.numel():
            flat, labels = flat.index_select(0, places), labels.index_select(0, places)
        return (self._fused if self.fused else self._generic)(flat, labels, required)

    def weights(self) -> tuple[Tensor, Tensor | None]:
        """Return this rank's weight [V, H] and bias [V] of the linear layer as plain tensors; call inside a
        forward.
        """
        return local(self.linear.weight), local(self.linear.bias)

    @property
    def chunk_rows(self) -> int:
        """How many rows of fp32 logits fit the byte budget."""
        vocab = int(self.linear.weight.shape[0]) if hasattr(self.linear, "weight") else 2**16
        return max(1, self.chunk_bytes // (4 * vocab))

    def own_logits(self, hidden: Tensor) -> Tensor:
        """hidden [N, H] -> logits [N, V] / temperature through the class's own head, in fp32 (fp64)."""
        logits = self._own(hidden) / self._temperature if self._temperature != 1.0 else self._own(hidden)
        return logits if logits.dtype == torch.float64 else logits.float()

    def _fused(self, hidden: Tensor, labels: Tensor, required: frozenset[Output]) -> dict[str, Tensor]:
        inputs = HeadInputs(hidden, *self.weights(), labels, self.shape)
        if not required.isdisjoint({Output.LOGPROBS, *_ENTROPIES}):
            logp, entropy, num_correct = self.vocabulary.stats(
                inputs,
                RequiredStats(
                    not required.isdisjoint(_ENTROPIES),
                    Output.CORRECT in required,
                    torch.is_grad_enabled(),
                    _likeliest(required),
                ),
            )
            out = {
                Output.LOGPROBS.value: logp,
                **dict.fromkeys((each.value for each in _ENTROPIES), entropy),
                Output.NLL.value: -logp.sum(),
                Output.CORRECT.value: num_correct,
            }
        else:
            nll, num_correct = self.vocabulary.nll(inputs, Output.CORRECT in required)
            out = {Output.NLL.value: nll, Output.CORRECT.value: num_correct}
        return {output.value: out[output.value] for output in required}

    def _generic(self, hidden: Tensor, labels: Tensor, required: frozenset[Output]) -> dict[str, Tensor]:
        """Compute in chunks through the class's own head; each chunk is recomputed in the backward."""
        rows, likeliest = self.chunk_rows, _likeliest(required)
        pieces = []
        for start in range(0, max(labels.numel(), 1), rows):
            part = (hidden[start : start + rows], labels[start : start + rows])
            # nothing labelled: one position of weight zero keeps every parameter in the graph
            if not labels.numel():
                part = (hidden.new_zeros(1, hidden.shape[1]) + hidden.sum(), labels.new_zeros(1))
            pieces.append(
                checkpoint(self._stats, *part, likeliest, use_reentrant=False)
                if torch.is_grad_enabled()
                else self._stats(*part, likeliest)
            )
        logp, entropy, num_correct = (torch.cat([p[i] for p in pieces]) for i in range(3))
        if not labels.numel():
            logp, entropy, num_correct = logp * 0.0, entropy * 0.0, num_correct * 0
        nll = -logp.sum()
        if not labels.numel():
            logp, entropy = logp[:0], entropy[:0]
        out = {
            Output.LOGPROBS: logp,
            **dict.fromkeys(_ENTROPIES, entropy),
            Output.NLL: nll,
            Output.CORRECT: num_correct.sum(),
        }
        return {output.value: out[output] for output in required}

    def _stats(self, hidden: Tensor, labels: Tensor, likeliest: int) -> tuple[Tensor, Tensor, Tensor]:
        logits = self.own_logits(hidden)
        logs = torch.log_softmax(logits, dim=-1)
        entropy = entropy_of(largest(logits, likeliest)) if likeliest else -(logs.exp() * logs).sum(-1)
        return logs.gather(1, labels[:, None]).squeeze(1), entropy, logs.argmax(-1) == labels


def _shape(config: Mapping[str, Json], chunk_bytes: int) -> HeadShape:
    """Return the scale and softcap of the logits by the config; checked against the class by
    ``Head._matches``.
    """
    scale, cap = 1.0, config.get("final_logit_softcapping")
    for key, inverse in (("logit_scale", False), ("logits_scaling", True), ("lm_head_multiplier", False)):
        value = config.get(key)
        if isinstance(value, (int, float)) and value:
            scale *= 1.0 / value if inverse else value
    return HeadShape(scale, float(cap) if isinstance(cap, (int, float)) else None, chunk_bytes)


def _likeliest(required: frozenset[Output]) -> int:
    """Return of how many tokens the entropy is; 0: of all."""
    return LIKELIEST if Output.LIKELIEST_ENTROPY in required else 0
