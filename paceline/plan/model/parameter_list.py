"""All parameters of a model by name and shape, and their number: from its sizes, or as its class lists them.

If the closed formulas may be inexact for a family, a child process queries the installed Transformers' class.
It imports torch and builds the class on the meta device. The answer is cached by everything that it depends
on: the config and the versions of Transformers, torch and this code. Code that comes with a model runs only
if ``trust_remote_code`` allows it, and its answer is not cached.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache, partial
from importlib import util
from importlib.metadata import PackageNotFoundError, version

from paceline.core.json_types import Json, JsonObject
from paceline.core.package import cache_folder
from paceline.plan.child_answer import child_reply, keep_answer, kept_answer
from paceline.plan.model.shape import (
    EMBEDDING,
    EXPERTS,
    HEAD,
    LAYER,
    LINEAR,
    MATRIX,
    TRANSPOSED,
    Latent,
    Listing,
    Mixture,
    ModelShape,
)
from paceline.plan.plan_json import from_json, shipped_table, to_json

#: Transformers' patterns for parameters without weight decay; ``strategies.optimizers.build`` uses the same.
MAGNITUDE = ".lora_magnitude_vector"  # of DoRA: peft's name of the lengths of a weight's rows
#: what peft calls its tensors: LoRA's factors and lengths, and OFT's rotations
_ADAPTERS = (".lora_", ".oft_R.")
NO_DECAY = re.compile(r"bias|layernorm|rmsnorm|(?:^|\.)norm(?:$|\.)|_norm(?:$|\.)", re.IGNORECASE)
ALL_LINEAR = "all-linear"
Named = tuple[str, tuple[int, ...]]


def of_adapter(name: str) -> str:
    """Return the layer that a tensor of an adapter belongs to; empty for a tensor of the model itself."""
    return next((name.partition(word)[0] for word in _ADAPTERS if word in name), "")


_OF_A_LAYER = re.compile(r"\.\d+\.")


def orthogonalised(name: str, dims: int) -> bool:
    """Whether Muon steps a parameter of ``dims`` dims: a matrix of a hidden layer, or its stack of experts.

    Embeddings, heads, biases, norms and convolutions are not.
    """
    if NO_DECAY.search(name) or _OF_A_LAYER.search(name) is None or "embed" in name:
        return False
    return dims == 2 or (dims == 3 and ".experts." in name)


def targets_of(words: Sequence[str]) -> tuple[str, ...]:
    """Return ``optim_target_modules`` as ``projected`` reads it: empty for every linear layer."""
    return () if any(word.replace("_", "-") == ALL_LINEAR for word in words) else tuple(words)


def projected(name: str, dims: int, targets: Sequence[str]) -> bool:
    """Whether GaLore projects the gradient of a parameter of ``dims`` dims. It does for a matrix whose module
    name contains one of ``targets``, or fully matches it as a pattern; without targets for hidden layers.
    """
    if dims != 2 or NO_DECAY.search(name) or "embed" in name:
        return False
    if not targets:
        return _OF_A_LAYER.search(name) is not None
    module = name.rpartition(".")[0]
    return any(target in module or re.fullmatch(target, module) for target in targets)


@dataclass(frozen=True)
class Parameter:
    """One parameter by its Hugging Face name; ``layer`` is None for embedding, final norm and head.

    ``kind``: the kind in the class's listing; empty if a formula lists it.
    """

    name: str
    shape: tuple[int, ...]
    layer: int | None = None
    kind: str = ""

    @property
    def numel(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def decays(self) -> bool:
        """Whether weight decay applies: to matrices, not to biases, norms and other 1-d tensors."""
        return len(self.shape) >= 2 and NO_DECAY.search(self.name) is None


@dataclass(frozen=True)
class _Layouts:
    """``frames``: models around their layers; ``blocks``: parts of them and of layers. Both are lines.

    A line is ``name sizes ?condition``. A size is a sum of products (``q+2*kv``); ``name.*`` stands for
    weight and bias, and the condition is then the bias's. In a frame, ``#`` is the number of a layer, and a
    line of one word is a block.
    """

    frames: Mapping[str, tuple[str, ...]]
    blocks: Mapping[str, tuple[str, ...]]


_layouts = cache(partial(shipped_table, "parameters", _Layouts))


def parameters_of(shape: ModelShape) -> tuple[Parameter, ...]:
    """Return all parameters in the order of ``named_parameters()``, tied ones once.

    They come from the class's listing if it was queried; else from the family's record, with a Llama's for an
    unknown family. A trunk without a head has names without its prefix. A whole model's tower comes last.
    """
    listed = _parameters(shape)
    if shape.whole and shape.tower is not None:
        return (*listed, *(Parameter(f"model.{name}", size) for name, size in shape.tower.tensors()))
    if not (shape.scalar_head and shape.head_outputs == 0):
        return listed
    kept = [p for p in listed if not shape.family.in_head(p.name, beside_trunk=True)]
    prefixes = {parameter.name.partition(".")[0] for parameter in kept}
    prefix = f"{min(prefixes)}." if len(prefixes) == 1 else ""
    return tuple(replace(parameter, name=parameter.name.removeprefix(prefix)) for parameter in kept)


def _parameters(shape: ModelShape) -> tuple[Parameter, ...]:
    if shape.listing is not None:
        return _as_listed(shape, shape.listing)
    parameters: list[Parameter] = []
    for line in _layouts().frames[shape.family.frame]:
        prefix, layers, _ = line.partition("#")
        parameters += (
            _layers(shape, prefix) if layers else (Parameter(*tensor) for tensor in _tensors(shape, [line]))
        )
    return tuple(parameters)


def _layers(shape: ModelShape, prefix: str) -> Iterator[Parameter]:
    """Yield all layers' parameters."""
    mixture = shape.mixture
    dense = list(_tensors(shape, _layer(shape, experts=False)))
    sparse = list(_tensors(shape, _layer(shape, experts=True))) if mixture else dense
    for i in range(shape.layers):
        for name, size in dense if mixture and i in mixture.dense_layers else sparse:
            yield Parameter(f"{prefix}{i}.{name}", size, i)


def _layer(shape: ModelShape, *, experts: bool) -> list[str]:
    """Return the blocks and lines of a layer."""
    family = shape.family
    if family.frame in _layouts().blocks:
        return [family.frame]
    attention = family.attention
    if shape.latent:
        queries = "low_rank_queries" if shape.latent.query_rank else "full_rank_queries"
        attention = (queries, "latent_attention")
    mlp = family.experts if experts else family.mlp
    return [*attention, *mlp, *(f"{name}.weight hidden" for name in family.norms)]


def _tensors(shape: ModelShape, lines: Sequence[str]) -> Iterator[Named]:
    """Yield names and shapes of the tensors of lines and blocks."""
    sizes, holds = _sizes(shape), _conditions(shape)
    for line in (entry for text in lines for entry in _layouts().blocks.get(text, (text,))):
        tensor, _, condition = line.partition(" ?")
        name, *dims = tensor.split()
        size = tuple(
            sum(
                math.prod(int(factor) if factor.isdigit() else sizes[factor] for factor in term.split("*"))
                for term in dim.split("+")
            )
            for dim in dims
        )
        applies = not condition or holds[condition]
        if name.endswith(".*"):
            yield f"{name[:-1]}weight", size
            if applies:
                yield f"{name[:-1]}bias", size[:1]
        elif applies:
            yield name, size


def _sizes(shape: ModelShape) -> dict[str, int]:
    """Return the sizes that lines name."""
    mixture = shape.mixture or Mixture(0, 0, 0)
    return {
        "hidden": shape.hidden_size,
        "inter": shape.intermediate,
        "vocab": shape.vocab,
        "positions": shape.max_position_embeddings,
        "outputs": shape.head_outputs,
        "heads": shape.heads,
        "head": shape.head_dim,
        "q": shape.heads * shape.head_dim,
        "kv": shape.kv_heads * shape.head_dim,
        "experts": mixture.experts,
        "width": mixture.width,
        "shared": mixture.shared,
        **asdict(shape.latent or Latent(0, 0, 0, 0, 0)),
    }


def _conditions(shape: ModelShape) -> dict[str, bool]:
    """Return the value of each condition that the lines use."""
    return {
        "attention_bias": shape.attention_bias,
        "mlp_bias": shape.mlp_bias,
        "shared": bool(shape.mixture and shape.mixture.shared),
        "score_head": shape.scalar_head and shape.head_outputs > 0,
        "language_head": not shape.scalar_head,
        "untied_head": not shape.scalar_head and not shape.tied,
    }


def _as_listed(shape: ModelShape, listing: Listing) -> tuple[Parameter, ...]:
    """Return the class's parameters; a scalar head takes the place of the language model's. An encoder's
    class has it already, for another number of classes.
    """
    encoder = shape.family.encoder
    listed = [
        Parameter(
            tensor.name.replace(f".{LAYER}.", f".{run.first + offset}.", 1),
            (shape.head_outputs, *tensor.shape[1:]) if encoder and tensor.kind == HEAD else tensor.shape,
            run.first + offset if run.first >= 0 else None,
            tensor.kind,
        )
        for run in listing.runs
        for offset in range(run.count)
        for tensor in listing.tensors[run.tensors]
        if not (shape.scalar_head and tensor.kind == HEAD) or encoder
    ]
    added = shape.scalar_head and shape.head_outputs > 0 and not encoder
    return (*listed, *(Parameter(*tensor) for tensor in _tensors(shape, ["head"]) if added))


def is_linear(shape: ModelShape, parameter: Parameter) -> bool:
    """Whether a parameter is the weight of a linear layer other than the head, which an adapter can wrap."""
    if parameter.kind:
        return parameter.kind in (LINEAR, TRANSPOSED)
    module, _, leaf = parameter.name.rpartition(".")
    router = bool(shape.experts) and module.endswith(("mlp.gate", "mlp.router"))
    return leaf == "weight" and len(parameter.shape) == 2 and parameter.layer is not None and not router


def is_transposed(shape: ModelShape, parameter: Parameter) -> bool:
    """Whether a linear layer's weight is stored [in, out]."""
    return parameter.kind == TRANSPOSED if parameter.kind else shape.family.conv1d


def is_multiplied(parameter: Parameter) -> bool:
    """Whether tokens are multiplied with this parameter; False for the head."""
    if parameter.kind:
        return parameter.kind in (LINEAR, TRANSPOSED, MATRIX, EXPERTS)
    return parameter.layer is not None and len(parameter.shape) >= 2 and not parameter.name.endswith("_bias")


def is_of_experts(shape: ModelShape, parameter: Parameter) -> bool:
    """Whether a parameter holds experts, some of which a token visits."""
    return (
        parameter.kind == EXPERTS
        if parameter.kind
        else len(parameter.shape) == 3 and shape.mixture is not None
    )


@dataclass(frozen=True)
class ParameterTally:
    """Parameters of a model. ``total``: all, tied ones once.

    ``active``: those that one token uses (only visited experts, no embeddings); ``embeddings``: tables of
    which a token reads one row (also a tied head's).
    """

    total: int
    active: int
    embeddings: int


def with_counts(shape: ModelShape) -> ModelShape:
    """Return ``shape`` with both counts, from the list of its parameters.

    Only the experts that a token is routed to count as matmul parameters.
    """
    listed = parameters_of(shape)
    matmul = shape.head_outputs * shape.hidden_size if shape.scalar_head else shape.vocab * shape.hidden_size
    matmul += sum(visited(shape, parameter) for parameter in listed if is_multiplied(parameter))
    return replace(shape, num_parameters=sum(p.numel for p in listed), matmul_parameters=matmul)


def with_tower(shape: ModelShape) -> ModelShape:
    """Return the shape of the whole model, counted with its tower if its layout is known."""
    if shape.tower is None:
        return shape
    tensors = list(shape.tower.tensors())
    left = max(0, shape.carried - len(tensors))
    share = left / shape.carried if shape.carried else 0.0
    whole = replace(shape, whole=True, carried=left, carried_bytes=round(shape.carried_bytes * share))
    return with_counts(whole)


def tally_of(shape: ModelShape) -> ParameterTally:
    """Return the numbers of all parameters and of those that a token uses."""
    listed = parameters_of(shape)
    tables = [p for p in listed if _is_table(p)]
    embeddings = sum(p.numel for p in tables)
    active = sum(visited(shape, p) for p in listed) - sum(visited(shape, p) for p in tables)
    return ParameterTally(sum(p.numel for p in listed), active, embeddings)


def visited(shape: ModelShape, parameter: Parameter) -> int:
    """Return the elements of a parameter that one token uses; of experts, only those it is routed to."""
    if shape.mixture is None or not is_of_experts(shape, parameter):
        return parameter.numel
    if len(parameter.shape) == 3:  # one matrix per expert; some stacks hold more than are routed to
        return parameter.numel // parameter.shape[0] * shape.mixture.visited
    return parameter.numel * shape.mixture.visited // shape.mixture.experts


def _is_table(parameter: Parameter) -> bool:
    if parameter.kind:
        return parameter.kind == EMBEDDING
    module = parameter.name.removesuffix(".weight").rpartition(".")[2]
    return module in _TABLES


#: Embeddings of the families that a formula lists: of tokens, and learned ones of positions.
_TABLES = frozenset({"embed_tokens", "wte", "wpe", "embed_in", "word_embeddings", "embed_positions"})


SECONDS = 180.0  # a slow disk takes a minute to import both
MODULE = "paceline.models.loading.list_parameters"
_FORMAT = 1


def counted(
    shape: ModelShape, config: Mapping[str, Json], environ: Mapping[str, str], code: JsonObject | None = None
) -> ModelShape:
    """Return ``shape`` with the parameters that Transformers' class lists, unless the formula is exact.

    ``config``: the model's ``config.json``. ``code``: ``name_or_path`` and ``revision`` of a model whose own
    Python code may run. If the class cannot be queried, the formula's counts stay; ``why_about`` holds the
    reason.
    """
    if shape.exact:
        return shape
    inner = config.get("text_config")  # a tower beside it is not trained
    listing, why = listing_of(inner if isinstance(inner, Mapping) and inner else config, environ, code)
    if listing is None:
        return replace(shape, why_about=why)
    return with_counts(replace(shape, listing=listing, tied=listing.tied, exact=True))


def listing_of(
    config: Mapping[str, Json], environ: Mapping[str, str], code: JsonObject | None = None
) -> tuple[Listing | None, str]:
    """Return (the listing or None, the reason for None). Takes at most ``SECONDS``."""
    missing = [name for name in ("torch", "transformers") if util.find_spec(name) is None]
    if missing:
        return None, f"{' and '.join(missing)}: not installed here"
    request: JsonObject = {**code, "trust_remote_code": True} if code else {"config": dict(config)}
    record = None if code else cache_folder(environ) / "parameters" / f"{_key(request)}.json"
    if record is not None and (listing := _parsed(kept_answer(record))) is not None:
        return listing, ""
    listing, why = query_class(request, environ)
    if listing is not None and record is not None:
        keep_answer(record, json.dumps(to_json(listing)))
    return listing, why


def query_class(request: JsonObject, environ: Mapping[str, str]) -> tuple[Listing | None, str]:
    offline = {**environ, "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}
    child = child_reply(MODULE, offline, SECONDS, json.dumps(request))
    if child.late:
        return None, f"its class was not built within {SECONDS:.0f} s"
    try:
        answer = json.loads(child.line)
    except ValueError:
        return None, f"its class could not be asked: {child.end}"
    if not isinstance(answer, dict) or "why" in answer:
        return None, f"its class could not be built: {answer.get('why') if isinstance(answer, dict) else ''}"
    listing = _parsed(json.dumps(answer.get("listing")))
    return listing, "" if listing is not None else "its class gave no list"


def _parsed(text: str) -> Listing | None:
    """Return the listing from its JSON; None if it is damaged."""
    try:
        listing = from_json(Listing, json.loads(text))
        return listing if listing.sound else None
    except (ValueError, TypeError, KeyError, AttributeError):
        return None


def _key(request: JsonObject) -> str:
    facts = {
        "format": _FORMAT,
        "request": request,
        "versions": {name: _version(name) for name in ("transformers", "torch")},
    }
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:32]


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""
