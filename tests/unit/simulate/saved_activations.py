"""What the layers of each family keep for the backward, simulated at full sizes, over what the plan counts
for a Llama of those sizes.

    .venv/bin/python tests/unit/simulate/saved_activations.py write    # into paceline/plan/data/families.json

Two layers, of the catalogue's first model of the family or of the sizes that its config class takes by
itself, without dropout. Mixtures of experts, latent attention and layers with state have their own formulas.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path[:0] = [str(Path(__file__).parents[n]) for n in (0, 1, 2, 3)]
    sys.path.insert(0, str(Path(__file__).parents[1] / "plan"))

from support import write_families

from paceline.plan.cost.coefficients import memory_coefficients
from paceline.plan.cost.from_plan import planned_candidate, search_spec_of
from paceline.plan.cost.memory.peak import chunk_of, peak_of
from paceline.plan.cost.simulation_check import compare
from paceline.plan.hardware.device_catalogue import cluster_of
from paceline.plan.model import family
from paceline.plan.model.family import families
from paceline.plan.model.model_catalogue import known_models, named_config
from paceline.simulate.run import simulate

TABLE = Path(family.__file__).parents[1] / "data/families.json"
#: differences below are the closed form's own, of a Llama
ALIKE = 0.06
#: beyond, something else is at work than what a layer keeps
LARGEST = 4.0
_DROPOUTS = (
    "attention_dropout",
    "attn_pdrop",
    "resid_pdrop",
    "embd_pdrop",
    "hidden_dropout",
    "residual_dropout",
)


def config_of(kind: str) -> dict[str, Any]:
    """Two layers of the family at full size."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    named = next(
        (c for c in map(named_config, known_models()) if c["model_type"] == kind), {"model_type": kind}
    )
    defaults = CONFIG_MAPPING[kind]().to_dict()
    kept = {key: value for key, value in dict(named).items() if key != "layer_types"}
    return {**kept, **{name: 0.0 for name in _DROPOUTS if defaults.get(name)}, "num_hidden_layers": 2}


def measured(kind: str) -> float:
    """Simulated over closed form, of a family with fused kernels; 0 where it has another formula."""
    from test_simulation import plan_of

    config = config_of(kind)
    plan = plan_of("H100", "single", config)
    ask = search_spec_of(plan, cluster_of("H100"))
    if ask is None or ask.shape.experts or ask.shape.latent or ask.shape.carries:
        return 0.0
    candidate = planned_candidate(plan, ask)
    assert candidate is not None
    work = replace(candidate.work, kernels="fused", saves=1.0)
    candidate = replace(candidate, work=work, peak=peak_of(work, memory_coefficients(work.system), 0))
    found = simulate(plan, config, chunk_of(work))
    [row] = [row for row in compare(plan, candidate, found) if row.what.startswith("activations")]
    assert row.simulated and row.closed
    return row.simulated / row.closed


def shown(ratio: float) -> float:
    """As the table has it: 1 for what is a Llama's, 0 for what is too far from one."""
    if abs(ratio - 1) <= ALIKE:
        return 1.0
    return round(ratio, 2) if ratio <= LARGEST else 0.0


def packed() -> Iterator[str]:
    """Families that train packed and carry no state."""
    return (kind for kind, row in families().items() if row.rows == "packed" and not row.carries)


def main() -> None:
    """Measure every family; print, and write with ``write``."""
    logging.disable(logging.CRITICAL)
    table = json.loads(TABLE.read_text(encoding="utf-8"))
    for kind in packed():
        try:
            ratio = measured(kind)
        except Exception as error:  # a class whose defaults are no model stays unknown
            print(f"{kind:28} {type(error).__name__}: {str(error)[:90]!r}", flush=True)
            continue
        print(f"{kind:28} {ratio:.3f}", flush=True)
        row = table["families"][kind]
        row.pop("saves", None)
        if shown(ratio):
            row["saves"] = shown(ratio)
    if "write" in sys.argv:
        write_families(TABLE, table)


if __name__ == "__main__":
    main()
