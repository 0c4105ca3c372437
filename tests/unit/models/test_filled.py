"""Every parameter of a model that was built without storage has got its values, or the start ends."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from model_families import FAMILIES, Source
from torch import nn

from paceline.core.errors import PacelineError
from paceline.models.factory import HFModelFactory
from paceline.models.loading.materialize import fill
from paceline.models.module_tensors import replace_tensors
from paceline.protocols.model import BuildOptions

ALONE: Any = SimpleNamespace(is_main=True, device=torch.device("cpu"), broadcast_json=lambda value: value)


def test_a_parameter_that_nobody_fills_is_named(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """On meta, or with one value that stands for all, as an engine that cuts it first is given it."""
    monkeypatch.setattr(torch.distributed, "broadcast", lambda *_: None)
    HFModelFactory(Source(config=FAMILIES["llama"]))().hf.save_pretrained(tmp_path)
    factory = HFModelFactory(Source(name_or_path=str(tmp_path)))
    source = factory(BuildOptions(by_slices=True))
    for held in (False, True):
        root = factory(BuildOptions(device=torch.device("meta")))
        fill(root, source, ALONE, torch.device("cpu"))
        head = root.hf.get_output_embeddings()
        more = nn.Parameter(torch.zeros(()).expand(2, 2) if held else torch.empty(2, 2, device="meta"))
        head.register_parameter("further", more)
        with pytest.raises(PacelineError, match="models.not_filled") as ended:
            fill(_emptied(root), source, ALONE, torch.device("cpu"))
        assert "lm_head.further" in str(ended.value) and "lm_head.weight" not in str(ended.value)


def _emptied(root: Any) -> Any:
    """The module with its filled parameters on meta again."""
    replace_tensors(root, {id(p): nn.Parameter(p.to("meta")) for p in root.parameters() if p.numel() > 4})
    return root
