"""``python -m paceline.models.loading.list_parameters``: print the parameters of a model's class as JSON.

Reads the class's part of a ``model:`` section from standard input, and builds the class on the meta device.
Started by ``plan.model.parameter_list``, so that planning itself needs no torch.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import version
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from paceline.core.errors import PacelineError
from paceline.core.json_types import JsonObject
from paceline.launch.program import redacted
from paceline.models.heads.sequence_classification import auto_class, last_layer
from paceline.models.loading.materialize import skeleton
from paceline.models.loading.model_source import code_options, load_hf_config
from paceline.models.lora.targets import read_by_parent
from paceline.plan.model.family import family_of
from paceline.plan.model.shape import (
    CONVOLUTION,
    COUNT,
    EMBEDDING,
    EXPERTS,
    HEAD,
    LAYER,
    LINEAR,
    MATRIX,
    OTHER,
    TRANSPOSED,
    LayerRun,
    Listed,
    Listing,
)
from paceline.plan.plan_json import to_json
from paceline.protocols.roles import Role

if TYPE_CHECKING:
    from paceline.protocols.model import HFModel

_STACK = re.compile(r"^(.*?\.?(?:layers|layer|h|blocks|block))\.(\d+)\.")
_ONE_EXPERT = re.compile(r"\.experts\.\d+\.")


@dataclass(frozen=True)
class ClassRequest:
    """A ``model:`` section as the factory reads it."""

    config: JsonObject | None = None
    name_or_path: str | None = None
    revision: str | None = None
    trust_remote_code: bool = False
    resize_embeddings: str = "auto"
    embedding_multiple: int = 1


@redacted
def main() -> int:
    """Print the listing, or why there is none, as the last line of the output. Return 0."""
    try:
        answer: JsonObject = {"listing": to_json(listing_of(ClassRequest(**json.load(sys.stdin))))}
    except PacelineError as error:
        answer = {"why": f"{error.diagnostics[0].what} ({error.diagnostics[0].found})"[:300]}
    except Exception as error:  # a class's own error
        answer = {"why": f"{type(error).__name__}: {' '.join(str(error).split())}"[:300]}
    print(json.dumps(answer), flush=True)
    return 0


def listing_of(source: ClassRequest) -> Listing:
    """Return the parameters of the model's class, built without storage. Passes on errors of building it."""
    config = load_hf_config(source)
    role = Role.CLASSIFIER if family_of(config.model_type).encoder else Role.POLICY
    hf = skeleton(auto_class(role), config, None, code_options(source))
    text = config.get_text_config()
    counts = {n for name in COUNT if type(n := getattr(text, name, None)) is int and n > 1}
    return listed(hf, frozenset(counts))


def listed(hf: HFModel, experts: frozenset[int] = frozenset()) -> Listing:
    """Return the parameters of ``hf``. ``experts``: sizes of a leading dimension that counts experts."""
    tables: dict[tuple[Listed, ...], int] = {}
    runs: list[LayerRun] = []
    for first, tensors in _by_layer(hf, experts):
        table = tables.setdefault(tensors, len(tables))
        last = runs[-1] if runs else None
        if (
            last
            and first >= 0
            and (last.tensors, last.first + last.count) == (table, first)
            and last.first >= 0
        ):
            runs[-1] = LayerRun(table, last.first, last.count + 1)
        else:
            runs.append(LayerRun(table, first))
    head = last_layer(hf)
    embedding = hf.get_input_embeddings()
    tied = head is not None and getattr(head, "weight", None) is getattr(embedding, "weight", head)
    saved = tuple(saved_bytes(hf, pattern) for pattern in _examples(tables, runs))
    return Listing(version("transformers"), tied, tuple(tables), tuple(runs), saved if any(saved) else ())


def _examples(tables: Mapping[tuple[Listed, ...], int], runs: Sequence[LayerRun]) -> Iterator[str]:
    """Yield the name of a layer for every list of tensors; empty outside of layers."""
    for tensors, table in tables.items():
        first = next(run.first for run in runs if run.tensors == table)
        yield tensors[0].name.partition(f".{LAYER}.")[0] + f".{first}" if first >= 0 else ""


def _by_layer(hf: HFModel, experts: frozenset[int]) -> Iterator[tuple[int, tuple[Listed, ...]]]:
    """Yield (layer, its tensors) in the order of ``named_parameters()``; -1: tensors outside of layers."""
    layer, gathered = ("", -1), list[Listed]()
    for name, shape, kind in parameter_kinds(hf, experts):
        stack = _STACK.match(name)
        here = (stack[1], int(stack[2])) if stack else ("", -1)
        if here != layer and gathered:
            yield layer[1], tuple(gathered)
            gathered = []
        layer = here
        pattern = f"{stack[1]}.{LAYER}.{name[stack.end() :]}" if stack else name
        gathered.append(Listed(pattern, shape, kind))
    if gathered:
        yield layer[1], tuple(gathered)


def parameter_kinds(hf: HFModel, experts: frozenset[int]) -> Iterator[tuple[str, tuple[int, ...], str]]:
    modules, head = dict(hf.named_modules()), last_layer(hf)
    for name, parameter in hf.named_parameters():
        owner, _, leaf = name.rpartition(".")
        module, shape = modules[owner], tuple(parameter.shape)
        kind = OTHER
        if module is head:
            kind = HEAD
        elif isinstance(module, nn.Embedding):
            kind = EMBEDDING
        elif leaf.endswith("bias") or len(shape) < 2:
            kind = OTHER
        elif _ONE_EXPERT.search(name) or (  # or one matrix per expert, stacked
            len(shape) == 3 and (shape[0] in experts or owner.endswith("experts"))
        ):
            kind = EXPERTS
        elif isinstance(module, nn.Linear):
            above, _, child = owner.rpartition(".")
            kind = MATRIX if child in read_by_parent(modules[above]) else LINEAR
        elif type(module).__name__ == "Conv1D":
            kind = TRANSPOSED
        elif isinstance(module, (nn.Conv1d, nn.Conv2d)):
            kind = CONVOLUTION
        elif leaf.endswith(("weight", "proj")):
            kind = MATRIX
        yield name, shape, kind


#: Parameters by which a mixer with state is known: decays, gates of a recurrence, convolutions over time.
_STATE = re.compile(
    r"(?:^|\.)(?:A_log|dt_bias|D|time_decay|recurrent_param|[if]gate_preact|(?:[qkv]_)?conv(?:_?1d)?)(?:\.|$)"
)
#: A layer that saves the inputs and outputs of its matrices keeps this many times their bytes in 16 bit
#: (measured: a Llama layer 1.05 to 1.08); one whose mixer could not be run at most this many (1.7 to 2.3).
PLAIN, UNKNOWN = 1.1, 2.3
TOKENS = 256  # of the trial: a multiple of the classes' chunks


def saved_bytes(hf: HFModel, layer: str) -> float:
    """Return bytes a token in bfloat16 that the layer named ``layer`` saves; 0 for a layer without state.

    State spaces, linear attention and recurrences have no formula in common. Without their kernels
    Transformers computes them by plain tensor operations that save many times the layer's width. So its mixer
    is called with hidden states without storage, and the bytes that autograd saves are added up.
    """
    if not layer:
        return 0.0
    block = hf.get_submodule(layer)
    mixers = [child for child in block.children() if _carries_state(child)]
    if not mixers:
        return 0.0
    width, total = hf.config.get_text_config().hidden_size, 0.0
    for mixer in mixers:
        measured = _measured(mixer, width)
        total += UNKNOWN * _moved(mixer) if measured is None else measured
    return total + PLAIN * (_moved(block) - sum(_moved(mixer) for mixer in mixers))


def _carries_state(module: nn.Module) -> bool:
    """Whether a mixer carries state from token to token; lightning attention has no parameter to tell."""
    has_state = any(_STATE.search(name) for name, _ in module.named_parameters())
    return has_state or "Lightning" in type(module).__name__


def _moved(module: nn.Module) -> float:
    """Return bytes of the inputs and outputs of the linear layers inside ``module``, a token, in 16 bit."""
    inside = (m for m in module.modules() if isinstance(m, nn.Linear))
    return 2.0 * sum(m.in_features + m.out_features for m in inside)


def _measured(mixer: nn.Module, width: int) -> float | None:
    """Return the bytes that ``mixer`` saves a token; None if it cannot be called alone."""
    # the bytes of a training in 16 bit
    mixer = mixer.to(torch.bfloat16)
    weights = {p.untyped_storage()._cdata for p in mixer.parameters()}
    for call in _calls(width):
        kept: dict[int, Tensor] = {}

        def keep(tensor: Tensor, kept: dict[int, Tensor] = kept) -> Tensor:
            if (storage := tensor.untyped_storage()._cdata) not in weights:
                kept[storage] = tensor
            return tensor

        with (
            suppress(TypeError, RuntimeError, ValueError, AttributeError, NotImplementedError),
            torch.device("meta"),
            torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor),
        ):
            call(mixer)
            return sum(tensor.untyped_storage().nbytes() for tensor in kept.values()) / TOKENS
    return None


def _calls(width: int) -> Iterator[Callable[[nn.Module], object]]:
    """Yield the ways in which Transformers' mixers are called."""

    def hidden() -> Tensor:
        return torch.empty(1, TOKENS, width, dtype=torch.bfloat16, requires_grad=True)

    positions = torch.arange(TOKENS, device="meta")[None]
    yield lambda mixer: mixer(hidden())
    yield lambda mixer: mixer(hidden(), position_ids=positions)
    yield lambda mixer: mixer(hidden(), positions, None)
    yield lambda mixer: mixer(hidden(), position_embeddings=None, attention_mask=None)


if __name__ == "__main__":
    sys.exit(main())
