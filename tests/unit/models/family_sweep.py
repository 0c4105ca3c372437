"""Every causal language model that Transformers registers, tried in small: does Paceline train and export it
as Transformers itself does?

    .venv/bin/python tests/unit/models/family_sweep.py            # the verdicts, one a line
    .venv/bin/python tests/unit/models/family_sweep.py write    # into paceline/plan/data/families.json
    .venv/bin/python tests/unit/models/family_sweep.py write mamba rwkv    # those rows alone

``supported`` means: losses and gradients of several documents, laid end to end (``packed``) or a row each
(``padded``), are those of each document alone through Transformers; later tokens change nothing earlier;
every trained parameter has a gradient; the exported folder has the names, shapes, values and config of
``save_pretrained``, and loads.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[2]))  # a script that imports this one has no path to support

import torch
from huggingface_hub.errors import StrictDataclassError
from model_families import Source, make_batch, spread_out
from safetensors.torch import load_file
from support import write_families
from tiny_families import tiny_config
from torch import Tensor
from transformers.integrations.heterogeneity.configuration_utils import AmbiguousGlobalPerLayerAttributeError

from paceline.checkpoint.checkpointer import Checkpointer
from paceline.checkpoint.export.hf_export import export_hf
from paceline.core.errors import PacelineError
from paceline.core.json_types import JsonObject
from paceline.core.rundir import RunDir
from paceline.models.attention.sparse_indexer import selectors
from paceline.models.factory import HFModelFactory
from paceline.models.loading.sharded_loading import FolderSlices
from paceline.models.role_module import RoleModule
from paceline.plan.model import family as family_records
from paceline.plan.model.family import SIZE_NAMES, Family, families
from paceline.plan.model.read_config import shape_from_config
from paceline.plan.model.shape import READ
from paceline.protocols.batch import IGNORE_INDEX, Batch
from paceline.protocols.model import BuildOptions
from paceline.protocols.roles import Output
from paceline.protocols.shard import Shard

TABLE = Path(__file__).parents[3] / "paceline/plan/data/families.json"
LARGEST = 3_000_000  # parameters of a model that counts as small
CLOSE = 1e-5
LENGTHS = (5, 12, 3, 9)

TOWER = "it also reads images or audio: its tower would be neither trained nor saved"
#: Families whose verdict a small model cannot give, and what the plan says of them.
BY_HAND = {
    "blt": "a byte-level model with a second model that splits bytes into patches",
    "qwen4_exp": "its config class has no sizes to build from",
    "qwen4_exp_text": "its config class has no sizes to build from",
    "dbrx": "its config class cannot be built by Transformers 5.23",
    "fuyu": TOWER,
    "reformer": "its attention chooses at random which tokens attend to each other",
}
#: What the sweep finds out; the other fields of a row are kept.
MEASURED = {"refused", "rows", "buffers", "carries", "selects", "parts", "sizes", "defaults", "counted"}
ENCODER = "an encoder, or one half of an encoder-decoder"


@dataclass(frozen=True)
class Verdict:
    """``rows``: packed, padded, or None with ``why`` it is refused. ``buffers``: whether its state has
    more than parameters; ``carries``: whether layers pass a state from token to token; ``selects``: whether
    parts select keys; ``parts``: whether each rank can read its own part of a folder.
    """

    rows: str | None
    why: str = ""
    buffers: bool = False
    carries: bool = False
    selects: bool = False
    parts: bool = False

    def to_json(self) -> dict[str, Any]:
        if not self.rows:
            return {"refused": self.why}
        names = ("buffers", "carries", "selects", "parts")
        traits = {name: getattr(self, name) for name in names}
        return {"rows": self.rows, **{name: True for name, value in traits.items() if value}}


def sizes_of(kind: str) -> dict[str, Any]:
    """What the family's config class takes where a size is left out, under the plan's names; a size that
    follows from others is not among them.
    """
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    plain = CONFIG_MAPPING[kind]()
    found: dict[str, Any] = {}
    for name, spellings in SIZE_NAMES.items():
        value = next((v for s in spellings if type(v := _value(plain, s)) is int), None)
        if value is not None and value > 0:
            found[name] = value
    with suppress(ValueError, TypeError, AttributeError, StrictDataclassError):
        wider = CONFIG_MAPPING[kind](
            hidden_size=2 * found.get("hidden_size", 0), num_attention_heads=4 * found.get("heads", 0)
        )
        for name in ("head_dim", "intermediate", "kv_heads"):
            if name in found and all(_value(wider, s) != found[name] for s in SIZE_NAMES[name]):
                del found[name]
    return {**found, **({"tied": True} if getattr(plain, "tie_word_embeddings", False) else {})}


def _value(config: Any, name: str) -> Any:
    """An attribute, None where there is none, or one a layer."""
    try:
        return getattr(config, name, None)
    except AmbiguousGlobalPerLayerAttributeError:
        return None


def miscounted(kind: str) -> tuple[bool, float] | None:
    """(whether the plan's counts are Transformers' own on the meta device, the one over the other at the
    sizes that the class takes by itself).

    None where the plan has no sizes to count from.
    """
    from transformers import AutoConfig, AutoModelForCausalLM

    exact, ratio = True, 1.0
    for config in (
        tiny_config(kind),
        {**tiny_config(kind), "tie_word_embeddings": True},
        {"model_type": kind},
    ):
        try:
            ours = shape_from_config(config).num_parameters
        except PacelineError:
            if len(config) > 1:
                return None
            continue  # the class's own sizes are no model (GLM 4 MoE's heads do not divide its width)
        values = {key: value for key, value in config.items() if key != "model_type"}
        auto: Any = AutoModelForCausalLM
        with (
            suppress(KeyError, ValueError, TypeError, StrictDataclassError),
            torch.device("meta"),
        ):  # a default that is no model
            theirs = sum(
                p.numel() for p in auto.from_config(AutoConfig.for_model(kind, **values)).parameters()
            )
            exact, ratio = exact and ours == theirs, ours / theirs
    return exact, ratio


def with_counts(table: dict[str, Any], kinds: tuple[str, ...]) -> dict[str, Any]:
    """The rows of ``kinds`` in the table with each supported family's default sizes, and whether a formula
    counts its parameters exactly.

    Where none does, the plan asks the class (``plan.model.ask_class``). Refused is what has no sizes.
    """
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    done = {}
    for kind in kinds:
        row = table[kind]
        done[kind] = {key: value for key, value in row.items() if key not in ("sizes", "defaults", "counted")}
        if "rows" not in row:
            continue
        done[kind]["sizes"] = sizes_of(kind)
        defaults = CONFIG_MAPPING[kind]().to_dict()
        done[kind] |= {"defaults": {n: defaults[n] for n in READ if type(defaults.get(n)) is int}}
        families_known(table | done)
        found = miscounted(kind)
        print(f"{kind:28} {found}", flush=True)
        if found is None:
            done[kind] = {
                "refused": "its memory cannot be predicted yet (its config has sizes of other kinds)"
            }
        elif found[0]:
            done[kind]["counted"] = True
    return done


def families_known(table: dict[str, Any]) -> None:
    """Write the table where the plan reads it, and have it read anew."""
    import transformers

    kept = json.loads(TABLE.read_text(encoding="utf-8"))
    write_families(TABLE, {**kept, "transformers": transformers.__version__, "families": table})
    family_records._table.cache_clear()


def registered() -> dict[str, str]:
    """Model type -> class of Transformers' causal language models."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    return dict(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)


def examine(kind: str) -> Verdict:
    """Try the family ``kind``."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    if kind in BY_HAND:
        return Verdict(None, BY_HAND[kind])
    inner = getattr(CONFIG_MAPPING[kind], "sub_configs", None) or {}
    if set(inner) - {"text_config", "attn_config"}:
        return Verdict(None, TOWER)
    if registered()[kind].endswith("ForConditionalGeneration"):
        return Verdict(None, TOWER)
    try:
        made = CONFIG_MAPPING[kind]()
        if getattr(made, "is_encoder_decoder", False):
            return Verdict(None, ENCODER)
        config = tiny_config(kind)
    except (ValueError, TypeError, AttributeError, StrictDataclassError) as error:
        return Verdict(
            None, f"no small model of it can be created to test it ({' '.join(str(error).split())[:100]})"
        )
    padded, module = _verdict_of(config, "sdpa")
    if module is None:
        padded, module = _verdict_of(config, "eager")
    if padded or module is None:
        return Verdict(None, ENCODER if getattr(made, "is_decoder", True) is False else padded)
    buffers, carries = any(True for _ in module.plain_named_buffers()), module.carries_state
    selects = any(True for _ in selectors(module.hf))
    if wrong := exported_otherwise(config, module):
        return Verdict(None, wrong)
    with packing_supposed(kind, carries):
        packed, module = _verdict_of(config, "paceline")
    rows = "padded" if packed or module is None else "packed"
    return Verdict(rows, "", buffers, carries, selects, in_parts(config))


def in_parts(config: dict[str, Any]) -> bool:
    """Whether each rank can read its own part of a folder of this model, and what it reads is the model's."""
    with tempfile.TemporaryDirectory() as folder:
        HFModelFactory(Source(config=config))().hf.save_pretrained(folder)
        factory = HFModelFactory(Source(name_or_path=folder))
        slices = factory(BuildOptions(device=torch.device("meta"), by_slices=True)).slices
        if not isinstance(slices, FolderSlices):
            return False
        for name, tensor in factory().hf.named_parameters():
            read = slices.read(name, (0,) * tensor.ndim, tensor.shape)
            assert torch.equal(read.to(tensor.dtype), tensor), name
    return True


@contextmanager
def packing_supposed(kind: str, carries: bool) -> Iterator[None]:
    """Inside, the table says that documents of this family can be packed: whether it is so is tried."""
    table: Any = families()
    row = table.get(kind)
    table[kind] = Family(rows="packed", carries=carries)
    try:
        yield
    finally:
        if row is None:
            del table[kind]
        else:
            table[kind] = row


def _verdict_of(config: dict[str, Any], attention: str) -> tuple[str, RoleModule | None]:
    """(what is wrong with losses and gradients, the module); no module where it cannot be built or run."""
    try:
        build = HFModelFactory(Source(config=config), attention=attention)
        small = sum(p.numel() for p in build(BuildOptions(device=torch.device("meta"))).parameters())
        if small > LARGEST:
            return "no small model of it can be created to test it", None
        module = build()
        spread_out(module)
        return losses_otherwise(module.train()), module
    except PacelineError as error:
        return error.diagnostics[0].what, None
    except (RuntimeError, TypeError, AttributeError, ValueError, IndexError, KeyError, ImportError) as error:
        return (
            f"its class does not run here ({type(error).__name__}: {' '.join(str(error).split())[:120]})",
            None,
        )


def losses_otherwise(module: RoleModule) -> str:
    """What differs from each document alone through Transformers' own class; empty: nothing."""
    batch = make_batch(LENGTHS, labels="some")
    expected, clean = alone(module.hf, batch)
    if not torch.equal(expected, alone(module.hf, batch)[0]):  # draws at random in training (PhiMoE's router)
        module.eval()
        expected, clean = alone(module.hf, batch)
    got = module(batch, frozenset({Output.LOGPROBS}))["logprobs"]
    if float((got - expected).detach().abs().max()) > CLOSE:
        return "documents change each other's losses"
    if _sees_ahead(module, batch, got):
        return "later tokens change earlier ones: it is not a causal language model"
    module(batch, frozenset({Output.NLL}))["nll"].backward()
    (-expected.sum()).backward()
    theirs = dict(clean.named_parameters())
    for name, parameter in module.hf.named_parameters():
        other = theirs[name].grad
        if parameter.requires_grad and parameter.grad is None:
            return f"parts of it are not trained by a language model's loss ({name.rpartition('.')[0]})"
        if other is not None and not torch.allclose(parameter.grad, other, rtol=1e-3, atol=2e-4):
            return f"its gradients are others than Transformers' ({name})"
    return ""


@torch.no_grad()
def _sees_ahead(module: RoleModule, batch: Batch, got: Tensor) -> bool:
    """Whether the last token of the last document changes what stands before it."""
    ids = batch.input_ids.clone()
    ids[0, -1] = 3 if ids[0, -1] != 3 else 4
    return (
        float(
            (module(replace(batch, input_ids=ids), frozenset({Output.LOGPROBS}))["logprobs"] - got)[:-1]
            .abs()
            .max()
        )
        > CLOSE
    )


def alone(hf: Any, batch: Batch) -> tuple[Tensor, Any]:
    """(log p(label) [L] of each document by itself through a fresh model of Transformers', that model)."""
    clean = copy_of(hf)
    bounds = batch.cu_seqlens.tolist()
    rows = []
    for start, end in zip(bounds, bounds[1:], strict=False):
        # rotary embeddings that remember a longer document begin anew
        for _, module in clean.named_modules():
            if hasattr(module, "max_seq_len_cached") and hasattr(module, "original_inv_freq"):
                module.max_seq_len_cached = module.original_max_seq_len
                module.inv_freq = module.original_inv_freq.clone()
        rows.append(clean(input_ids=batch.input_ids[:, start:end], use_cache=False).logits[0])
    logs = torch.log_softmax(torch.cat(rows).float(), dim=-1)
    labels = batch.labels[0]
    places = (labels != IGNORE_INDEX).nonzero().squeeze(1)
    return logs[places].gather(1, labels[places, None]).squeeze(1), clean


def copy_of(hf: Any) -> Any:
    """The Hugging Face class with the attention it takes by itself and none of our swaps."""
    clean = type(hf)._from_config(
        type(hf.config).from_dict(hf.config.to_dict()), dtype=next(hf.parameters()).dtype
    )
    clean.load_state_dict(hf.state_dict())
    return clean.train(hf.training)


def exported_otherwise(config: dict[str, Any], module: RoleModule) -> str:
    """What of an exported folder differs from ``save_pretrained``'s; empty: nothing."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        try:
            ours = exported(HFModelFactory(Source(config=config)).saved_config, module, place)
        except PacelineError as error:
            return f"it cannot be exported: {error.diagnostics[0].what} ({error.diagnostics[0].found[:120]})"
        clean = copy_of(module.hf)
        saved = HFModelFactory(Source(config=config)).saved_config
        if "use_cache" in saved:
            clean.config.use_cache = saved["use_cache"]
        else:
            clean.config.__dict__.pop("use_cache", None)
        clean.save_pretrained(place / "theirs")
        mine, theirs = load_file(ours / "model.safetensors"), load_file(place / "theirs/model.safetensors")
        if {n: t.shape for n, t in mine.items()} != {n: t.shape for n, t in theirs.items()}:
            return (
                "it is exported under other names than save_pretrained's"
                f" ({sorted(set(mine) ^ set(theirs))[:2]})"
            )
        if wrong := [name for name in mine if not torch.equal(mine[name], theirs[name])]:
            return f"it is exported with other values than save_pretrained's ({wrong[0]})"
        said, expected = (json.loads((f / "config.json").read_text()) for f in (ours, place / "theirs"))
        keys = {key for key in said.keys() | expected.keys() if not key.startswith("_")} - {
            "transformers_version"
        }
        differ = sorted(key for key in keys if not _same(said.get(key), expected.get(key)))
        return f"its exported config differs from save_pretrained's ({', '.join(differ)})" if differ else ""


def _same(one: Any, other: Any) -> bool:
    """Equal; of a config inside a config what both say (a library's defaults may stand in one alone)."""
    if isinstance(one, dict) and isinstance(other, dict):
        return all(one[key] == other[key] for key in one.keys() & other.keys() if not key.startswith("_"))
    return bool(one == other)


def exported(config: JsonObject, module: RoleModule, place: Path) -> Path:
    """The folder that an export of ``module`` writes, whose ``config.json`` is ``config``."""
    tensors = [("param", n, p.detach()) for n, p in module.plain_named_parameters()]
    tensors += [("buffer", n, b) for n, b in module.plain_named_buffers()]
    role = module.role.value
    shards = [Shard(role, name, kind, tuple(t.shape), (0,) * t.ndim, t) for kind, name, t in tensors]
    files = {"config.json": json.dumps(config).encode()}
    saved = Checkpointer(RunDir.at(place / "run"), _OneRank(), None).save(1, shards, {}, files)
    export_hf(saved, place / "ours")
    return place / "ours"


class _OneRank:
    rank = 0
    world_size = 1

    def all_gather_json(self, obj: Any) -> list[Any]:
        return [json.loads(json.dumps(obj))]


def main() -> None:
    """Print, or write, the table."""
    parser = argparse.ArgumentParser(description="Try every causal language model of Transformers in small.")
    parser.add_argument(
        "kinds", nargs="*", help=f"model types [default: all]; write: all or those, and into {TABLE.name}"
    )
    args = parser.parse_args()
    write, kinds = args.kinds[:1] == ["write"], [kind for kind in args.kinds if kind != "write"]
    found = {}
    for kind in kinds or sorted(registered()):
        found[kind] = examine(kind)
        print(
            f"{kind:28} {found[kind].rows or 'refused'}{' buffers' if found[kind].buffers else ''}"
            f" {found[kind].why}",
            flush=True,
        )
    if write:
        before = json.loads(TABLE.read_text(encoding="utf-8"))["families"]
        kept = before if kinds else {}
        by_hand = {k: {n: v for n, v in row.items() if n not in MEASURED} for k, row in before.items()}
        made = {kind: {**verdict.to_json(), **by_hand.get(kind, {})} for kind, verdict in found.items()}
        families_known(kept | made)
        families_known(kept | with_counts(kept | made, tuple(made)))


if __name__ == "__main__":
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    warnings.simplefilter("ignore")
    main()
