"""This project's own measurements on one H100 (``docs/reference/gpu_support.md``), beside the plan."""

from __future__ import annotations

from dataclasses import dataclass, replace

from paceline.core.json_types import Json
from paceline.plan.cost.search import GIB, Candidate, SearchSpec, predicted, search
from paceline.plan.hardware.device_catalogue import cluster_of
from paceline.plan.model.model_catalogue import named_config
from paceline.plan.model.read_config import shape_from_config

BILLION: dict[str, Json] = {
    "model_type": "llama",
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": True,
}


@dataclass(frozen=True)
class OwnRow:
    """A measured window: milliseconds and GiB of tensors; 0 where not measured."""

    model: str
    layers: int
    rows: int
    tokens: int
    milliseconds: float
    tensors: float

    def planned(self) -> Candidate:
        """What the planner says of it."""
        config = BILLION if not self.model else {**named_config(self.model), "num_hidden_layers": self.layers}
        spec = SearchSpec(shape_from_config(config), cluster_of("1xH100"), self.tokens, self.rows)
        found = next(c for c in search(spec) if c.layout.whole_copies and c.work.recompute == "none")
        work = replace(found.work, micro_batch=self.rows, accumulation=1)
        return predicted(found.layout, work, found.mesh, spec)


OWN = (
    OwnRow("qwen2.5-0.5b", 24, 32, 512, 128.0, 18.90),
    OwnRow("gemma-2-2b", 8, 1, 8192, 205.0, 23.47),
    OwnRow("", 16, 6, 2048, 6 * 2048 / 60.536, 0.0),
)


def own_lines() -> list[str]:
    """The report's first table."""
    lines = ["## One card: this project's own H100", ""]
    lines += ["| model | rows × tokens | measured | planned | error | GiB of tensors | planned | error |"]
    lines += ["| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |"]
    for row in OWN:
        c = row.planned()
        step, held = 1e3 * c.step, (c.peak.total - c.peak.fragments - c.peak.overhead) / GIB
        memory = f"{row.tensors:.1f} | {held:.1f} | {held / row.tensors - 1:+.0%}" if row.tensors else "| |"
        lines.append(
            f"| {row.model or '1 B Llama'}, {row.layers} layers | {row.rows} × {row.tokens} |"
            f" {row.milliseconds:.0f} ms | {step:.0f} ms | {step / row.milliseconds - 1:+.0%} | {memory} |"
        )
    return lines
