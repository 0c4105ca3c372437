"""``make families``: what holds of every causal family of Transformers, one small model of each.

    .venv/bin/python tests/unit/models/family_matrix.py [--only KIND ...] [--part K/N] [--columns NAME ...]
    .venv/bin/python tests/unit/models/family_matrix.py --ranks [...]    # the columns of two processes
    .venv/bin/python tests/unit/models/family_matrix.py --towers         # models that hold a language model

Writes docs/reference/family-matrix.json after every family, and family-matrix.md of it: runs may be cut into
pieces, and what was not run stays as it was. A family without a result stands there as untested, so a later
Transformers' do by themselves.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import transformers
from family_folders import balanced, carried, has_balance_loss, tower
from family_ranks import AT_ONCE, CLOSE, GAP, RANKED, TP, run
from family_sweep import alone, exported_otherwise, losses_otherwise, registered
from model_families import Source, make_batch, spread_out
from test_state_layers import Wide
from tiny_families import tiny_config
from torch import Tensor
from vision_matrix import IMAGES, seen

from paceline.core.errors import PacelineError
from paceline.models.factory import HFModelFactory
from paceline.models.role_module import RoleModule
from paceline.plan.model.family import composites, families
from paceline.plan.plan import AdapterSpec
from paceline.protocols.batch import Batch
from paceline.protocols.roles import Output

DOCS = Path(__file__).parents[3] / "docs/reference"
RESULTS, PAGE = DOCS / "family-matrix.json", DOCS / "family-matrix.md"
WORKS, REFUSED, FAILS, UNTESTED, NONE = "works", "refused", "fails", "untested", "none"
MARKS = {WORKS: "✓", REFUSED: "–", FAILS: "✗", UNTESTED: "untested", NONE: ""}
LOGPROBS, NLL = frozenset({Output.LOGPROBS}), frozenset({Output.NLL})
LENGTHS = (5, 12, 3, 12, 7)
EXACT = 1e-10  # float64
SINGLE = 1e-6  # where a class computes a part in float32 whatever its weights are: said on the page
COARSE = {torch.bfloat16: 0.05, torch.float16: 0.02}  # of the mean loss, against float32
DOUBLE: dict[str, Any] = {"master_dtype": torch.float64, "compute_dtype": torch.float64}


@dataclass(frozen=True)
class Cell:
    """What a check found: ``result``, why where it does not work, and the largest difference it measured."""

    result: str
    reason: str = ""
    measured: float | None = None

    def to_json(self) -> dict[str, Any]:
        return {k: v for k, v in vars(self).items() if v not in ("", None)}


def build(kind: str, **options: Any) -> RoleModule:
    module = HFModelFactory(Source(config=tiny_config(kind)), **options)()
    spread_out(module)
    return module.train()


def calm(module: RoleModule, batch: Batch) -> RoleModule:
    """The module, not in training where it draws at random there (PhiMoE's router)."""
    first, second = (module(batch, LOGPROBS)["logprobs"] for _ in range(2))
    return module if torch.equal(first, second) else module.eval()


def judged(difference: float, bound: float) -> Cell:
    if difference <= bound:
        return Cell(WORKS, measured=difference)
    if bound == EXACT and difference <= SINGLE:
        return Cell(WORKS, f"to {difference:.0e}: a part is computed in float32", difference)
    return Cell(FAILS, f"differs by {difference:.1e}, more than {bound:g}", difference)


def step_one(kind: str) -> Cell:
    """Losses and gradients of the first step are Transformers' own on the same tokens."""
    wrong = losses_otherwise(build(kind))
    return Cell(FAILS, wrong) if wrong else Cell(WORKS)


def documents(kind: str) -> Cell:
    """Packed, padded and one by one are equal."""
    batch, padded = make_batch(LENGTHS, labels="some"), "sdpa"
    try:
        build(kind, attention=padded)
    except ValueError:  # its class has no other attention
        padded = "eager"
    with Wide():
        modules = [calm(build(kind, attention=name, **DOUBLE), batch) for name in ("auto", padded)]
        expected, _ = alone(modules[0].hf, batch)
        found = [module(batch, LOGPROBS)["logprobs"] for module in modules]
    return judged(max(float((one - expected).detach().abs().max()) for one in found), EXACT)


def neighbours(kind: str) -> Cell:
    """A document's losses and the gradients of its loss do not depend on its neighbours in the row."""
    one, other = make_batch((6, 9, 4), seed=1), make_batch((6, 9, 4), seed=2)
    mixed = one.input_ids.clone()
    mixed[:, :6], mixed[:, 15:] = other.input_ids[:, :6], other.input_ids[:, 15:]
    changed = Batch(mixed, one.labels, one.position_ids, one.cu_seqlens, 9, one.document_ids, 3)
    found: list[list[Tensor]] = []
    # what a head recomputes in a backward is not wide
    with Wide(), mock.patch("paceline.models.heads.lm_head.checkpoint", lambda f, *given, **_: f(*given)):
        module = calm(build(kind, **DOUBLE), one)
        for batch in (one, changed):
            logs = module(batch, LOGPROBS)["logprobs"][5:13]
            module.zero_grad()
            logs.sum().backward()
            grads = [p.grad.clone() for _, p in module.plain_named_parameters() if p.grad is not None]
            found.append([logs.detach(), *grads])
    return judged(max(float((a - b).abs().max()) for a, b in zip(*found, strict=True)), EXACT)


def lora(kind: str) -> Cell:
    """Two steps with adapters on all linear layers move every factor and nothing else."""
    spec = AdapterSpec(r=4, alpha=8, dropout=0.0, target_modules=("all-linear",))
    module, batch = build(kind, adapter=spec), make_batch(LENGTHS)
    generator = torch.Generator().manual_seed(2)
    for name, p in module.hf.named_parameters():  # nothing behind a zero would move
        if "lora_" not in name:
            p.data.add_(torch.randn(p.shape, generator=generator), alpha=0.1)
    before = {name: p.detach().clone() for name, p in module.hf.named_parameters()}
    losses = []
    for _ in range(3):
        loss = module(batch, NLL)["nll"]
        losses.append(float(loss.detach()))
        module.zero_grad()
        loss.backward()
        with torch.no_grad():
            for p in module.parameters():
                if p.grad is not None:
                    p.sub_(p.grad, alpha=1e-4)
    moved = {n for n, p in module.hf.named_parameters() if not torch.equal(p.detach(), before[n])}
    trained = {n for n, p in module.hf.named_parameters() if p.requires_grad}
    if moved - trained:
        return Cell(FAILS, f"frozen weights moved ({min(moved - trained)})")
    if still := {n for n in trained - moved if "lora_" in n}:
        return Cell(FAILS, f"{len(still)} of {len(trained)} trained tensors did not move ({min(still)})")
    return Cell(WORKS) if losses[-1] < losses[0] else Cell(FAILS, f"the loss does not fall: {losses}")


def exported(kind: str) -> Cell:
    """An export's names, shapes, values and config are those of ``save_pretrained``."""
    wrong = exported_otherwise(tiny_config(kind), build(kind))
    return Cell(FAILS, wrong) if wrong else Cell(WORKS)


def low_precision(kind: str, dtype: torch.dtype) -> Cell:
    """The mean loss is float32's but for rounding, and every gradient is finite."""
    batch, found = make_batch(LENGTHS), []
    for compute in (torch.float32, dtype):
        module = calm(build(kind, compute_dtype=compute), batch)
        loss = module(batch, NLL)["nll"]
        loss.backward()
        found.append(float(loss.detach()))
    finite = all(bool(torch.isfinite(p.grad).all()) for p in module.parameters() if p.grad is not None)
    if not finite:
        return Cell(FAILS, "gradients are not finite")
    return judged(abs(found[1] - found[0]) / abs(found[0]), COARSE[dtype])


def carries(kind: str) -> Cell:
    """Tensors of a folder that the class does not know leave in the export bit for bit."""
    wrong = carried(kind)
    return Cell(FAILS, wrong) if wrong else Cell(WORKS)


def balance(kind: str) -> Cell:
    """The experts' balance loss and its gradients are Transformers' own, by document and by micro-batch."""
    if not has_balance_loss(kind):
        return Cell(NONE)
    wrong, gap = balanced(kind)
    return Cell(FAILS, wrong, gap) if wrong else judged(gap, 1e-5)


def with_tower(kind: str) -> Cell:
    """Logits of a text are the whole's; trained, the tower and all else leave in the export bit for bit."""
    wrong = tower(kind)
    return Cell(FAILS, wrong) if wrong else Cell(WORKS)


COLUMNS: dict[str, Callable[[str], Cell]] = {
    "step 1": step_one,
    "documents": documents,
    "neighbours": neighbours,
    "lora": lora,
    "export": exported,
    "bf16": lambda kind: low_precision(kind, torch.bfloat16),
    "fp16": lambda kind: low_precision(kind, torch.float16),
    "carried": carries,
    "balance loss": balance,
}
WHOLE = "tower"


def checked(kind: str, column: str) -> Cell:
    """The cell of ``kind`` in ``column``; refused where Paceline says no, before anything is computed."""
    refused = families()[kind].refused if kind in families() else ""
    if column in IMAGES and not composites()[kind].pixels:
        return Cell(REFUSED, composites()[kind].no_images)
    if refused and column not in (WHOLE, *IMAGES):
        return Cell(REFUSED, refused)
    try:
        torch.manual_seed(0)
        if column in IMAGES:
            seen(kind, column)
            return Cell(WORKS)
        return with_tower(kind) if column == WHOLE else COLUMNS[column](kind)
    except PacelineError as error:
        one = error.diagnostics[0]
        found = re.sub(r"/tmp/\S+: ", "", one.found)
        return Cell(REFUSED, f"{one.what} ({found})"[:200])
    except Exception as error:  # a class's own error is the finding
        return Cell(FAILS, f"{type(error).__name__}: {' '.join(str(error).split())[:160]}")


Results = dict[str, dict[str, dict[str, Any]]]


def load() -> Results:
    """The results on disk."""
    if not RESULTS.exists():
        return {}
    found: Results = json.loads(RESULTS.read_text(encoding="utf-8"))["families"]
    return found


def write(results: Results) -> None:
    """Results and page."""
    rows = ",\n".join(f'  "{kind}": {json.dumps(row)}' for kind, row in sorted(results.items()))
    staged = RESULTS.with_suffix(".part")
    staged.write_text(
        f'{{"transformers": "{transformers.__version__}", "families": {{\n{rows}\n}}}}\n', encoding="utf-8"
    )
    os.replace(staged, RESULTS)
    PAGE.write_text(page(results), encoding="utf-8")


def page(results: Results) -> str:
    """The page of ``results``; families that the table supports but nothing was run of are untested."""
    kinds = sorted(
        k
        for k in {*registered(), *results} - composites().keys()
        if not (k in families() and families()[k].refused)
    )
    columns = [*COLUMNS, *RANKED]
    alone = [k for k in kinds if all(_result(results, k, c) in (WORKS, NONE) for c in COLUMNS)]
    whole = [k for k in alone if all(_result(results, k, c) == WORKS for c in RANKED if c != TP)]
    with_tp = [k for k in whole if _result(results, k, TP) == WORKS]
    lines = [
        "# The family matrix",
        "",
        (
            "(Generated by `make families` from `family-matrix.json`; do not edit."
            " Refused families: [families](families.md).)"
        ),
        "",
        "One small model of each family, made from its config, on a CPU.",
        "",
        *(f"- **{name}**: {_told(check)}" for name, check in COLUMNS.items() if check.__doc__),
        f"- **bf16**, **fp16**: {_told(low_precision)}",
        *(f"- **{name}**: {words}" for name, words in RANKED.items()),
        "",
        (
            f"`documents` and `neighbours` in float64 to {EXACT:g}; `step 1` to 1e-5; the loss in bf16 to"
            f" {COARSE[torch.bfloat16]:.0%}, in fp16 to {COARSE[torch.float16]:.0%}."
            f" On ranks in float32, to {CLOSE:g}; `grpo` to {GAP:g}."
        ),
        "",
        (
            "✓ holds · – refused with the reason · ✗ does not hold · untested: not run yet. All columns of"
            f" one process hold for **{len(alone)}** families; those of two processes as well for"
            f" **{len(whole)}**, for {len(with_tp)} of them with tensor parallelism too."
        ),
        "",
        f"| `model_type` | {' | '.join(columns)} |",
        f"|---|{':-:|' * len(columns)}",
        *(f"| {k} | {' | '.join(MARKS[_result(results, k, c)] for c in columns)} |" for k in kinds),
        "",
        "## With a tower",
        "",
        f"{_told(with_tower)} Of the language model within, the table above tells the rest.",
        "",
        "With images, all of it trained:",
        "",
        *(f"- **{name}**: {' '.join((check.__doc__ or '').split())}" for name, check in IMAGES.items()),
        "",
        f"| `model_type` | its language model | held | {' | '.join(IMAGES)} |",
        f"|---|---|:-:|{':-:|' * len(IMAGES)}",
        *(
            f"| {k} | {one.text or 'as its `text_config` says'} |"
            f" {' | '.join(MARKS[_result(results, k, c)] for c in (WHOLE, *IMAGES))} |"
            for k, one in sorted(composites().items())
        ),
        "",
        "## Why not",
        "",
        *(
            f"- {k}, {c} ({row['result']}): {row.get('reason', '').replace('|', '/')}"
            for k in [*kinds, *sorted(composites())]
            for c, row in results.get(k, {}).items()
            if row["result"] in (REFUSED, FAILS)
        ),
        "",
        f"## Bounds beyond {EXACT:g}",
        "",
        *(
            f"- {k}, {c}: {row['reason']}"
            for k in kinds
            for c, row in results.get(k, {}).items()
            if row["result"] == WORKS and row.get("reason")
        ),
    ]
    return "\n".join(lines) + "\n"


def _told(check: Callable[..., Cell]) -> str:
    return " ".join((check.__doc__ or "").split())


def _result(results: Mapping[str, Mapping[str, Mapping[str, Any]]], kind: str, column: str) -> str:
    return str(results.get(kind, {}).get(column, {}).get("result", UNTESTED))


def run_ranked(kinds: list[str], columns: list[str], missing: bool) -> None:
    """Fill the columns of two processes, some families at a time."""
    held = load()
    asked = {k: [c for c in columns if not (missing and c in held.get(k, {}))] for k in kinds}
    wanted = [kind for kind, those in asked.items() if those]
    for start in range(0, len(wanted), AT_ONCE):
        found = run({kind: asked[kind] for kind in wanted[start : start + AT_ONCE]})
        results = load()
        for kind, row in found.items():
            results.setdefault(kind, {}).update(row)
            print(f"{kind:28} {' '.join(MARKS[_result(results, kind, c)] for c in RANKED)}", flush=True)
        write(results)


def main() -> None:
    """Run what was asked for, and write it."""
    about = "Check families of models, and write docs/reference/family-matrix.md."
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--only", nargs="*", default=(), help="model types [default: all not refused]")
    parser.add_argument("--part", default="1/1", metavar="K/N", help="every N-th family from the K-th on")
    parser.add_argument("--columns", nargs="*", choices=(*COLUMNS, *RANKED), help="[default: all]")
    parser.add_argument("--missing", action="store_true", help="only cells without a result")
    parser.add_argument("--towers", action="store_true", help="the models with a tower instead")
    parser.add_argument("--ranks", action="store_true", help="the columns of two processes instead")
    given = parser.parse_args()
    part, parts = (int(number) for number in given.part.split("/"))
    table = families()
    kinds = [k for k in sorted(registered()) if not (k in table and table[k].refused)]
    chosen = (given.only or kinds)[part - 1 :: parts]
    if given.ranks:
        run_ranked(chosen, [c for c in given.columns or RANKED if c in RANKED], given.missing)
        return
    columns = [c for c in given.columns or COLUMNS if c in COLUMNS]
    if given.towers:
        chosen, columns = given.only or sorted(composites()), [WHOLE, *IMAGES]
    for kind in chosen:
        results = load()
        row = results.setdefault(kind, {})
        for column in columns:
            if given.missing and column in row:
                continue
            row[column] = checked(kind, column).to_json()
        write(results)
        print(f"{kind:28} {' '.join(MARKS[_result(results, kind, c)] or '·' for c in columns)}", flush=True)


if __name__ == "__main__":
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    warnings.simplefilter("ignore")
    main()
