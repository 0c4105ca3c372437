"""Parameters of models with a vision tower, from their config.json alone, against Transformers' classes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForImageTextToText

from paceline.config.schema import Config
from paceline.plan.model.family import in_part, parts_of
from paceline.plan.model.parameter_list import parameters_of, with_tower
from paceline.plan.model.read_config import shape_from_config
from paceline.plan.model.tower import tower_of

QWEN2 = {"rms_norm_eps": 1e-6, "rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]}}
#: config.json of published models, as far as sizes go; written from memory, not fetched
PUBLISHED: dict[str, dict[str, Any]] = {
    "Qwen2.5-VL-3B": {
        "model_type": "qwen2_5_vl",
        "hidden_size": 2048,
        "intermediate_size": 11008,
        "num_hidden_layers": 36,
        "num_attention_heads": 16,
        "num_key_value_heads": 2,
        "vocab_size": 151936,
        "tie_word_embeddings": True,
        **QWEN2,
        "vision_config": {
            "depth": 32,
            "hidden_size": 1280,
            "intermediate_size": 3420,
            "out_hidden_size": 2048,
        },
    },
    "Qwen2.5-VL-7B": {
        "model_type": "qwen2_5_vl",
        "hidden_size": 3584,
        "intermediate_size": 18944,
        "num_hidden_layers": 28,
        "num_attention_heads": 28,
        "num_key_value_heads": 4,
        "vocab_size": 152064,
        "tie_word_embeddings": False,
        **QWEN2,
        "vision_config": {
            "depth": 32,
            "hidden_size": 1280,
            "intermediate_size": 3420,
            "out_hidden_size": 3584,
        },
    },
    "Qwen2.5-VL-72B": {
        "model_type": "qwen2_5_vl",
        "hidden_size": 8192,
        "intermediate_size": 29568,
        "num_hidden_layers": 80,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "vocab_size": 152064,
        "tie_word_embeddings": False,
        **QWEN2,
        "vision_config": {
            "depth": 32,
            "hidden_size": 1280,
            "intermediate_size": 3456,
            "out_hidden_size": 8192,
        },
    },
    "Qwen2-VL-2B": {
        "model_type": "qwen2_vl",
        "hidden_size": 1536,
        "intermediate_size": 8960,
        "num_hidden_layers": 28,
        "num_attention_heads": 12,
        "num_key_value_heads": 2,
        "vocab_size": 151936,
        "tie_word_embeddings": True,
        **QWEN2,
        "vision_config": {"depth": 32, "embed_dim": 1280, "hidden_size": 1536, "in_chans": 3},
    },
    "Qwen3-VL-8B": {
        "model_type": "qwen3_vl",
        "tie_word_embeddings": False,
        "text_config": {
            "model_type": "qwen3_vl_text",
            "hidden_size": 4096,
            "intermediate_size": 12288,
            "num_hidden_layers": 36,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "vocab_size": 151936,
        },
        "vision_config": {
            "model_type": "qwen3_vl",
            "depth": 27,
            "hidden_size": 1152,
            "intermediate_size": 4304,
            "out_hidden_size": 4096,
            "deepstack_visual_indexes": [8, 16, 24],
        },
    },
    "gemma-3-4b": {
        "model_type": "gemma3",
        "text_config": {
            "model_type": "gemma3_text",
            "hidden_size": 2560,
            "intermediate_size": 10240,
            "num_hidden_layers": 34,
            "num_attention_heads": 8,
            "num_key_value_heads": 4,
            "head_dim": 256,
            "vocab_size": 262208,
        },
        "vision_config": {
            "model_type": "siglip_vision_model",
            "hidden_size": 1152,
            "intermediate_size": 4304,
            "num_hidden_layers": 27,
            "num_attention_heads": 16,
            "image_size": 896,
            "patch_size": 14,
            "vision_use_head": False,
        },
    },
    "gemma-3-27b": {
        "model_type": "gemma3",
        "text_config": {
            "model_type": "gemma3_text",
            "hidden_size": 5376,
            "intermediate_size": 21504,
            "num_hidden_layers": 62,
            "num_attention_heads": 32,
            "num_key_value_heads": 16,
            "head_dim": 128,
            "vocab_size": 262208,
        },
        "vision_config": {
            "model_type": "siglip_vision_model",
            "hidden_size": 1152,
            "intermediate_size": 4304,
            "num_hidden_layers": 27,
            "num_attention_heads": 16,
            "image_size": 896,
            "patch_size": 14,
            "vision_use_head": False,
        },
    },
    "llava-1.5-7b": {
        "model_type": "llava",
        "text_config": {"model_type": "llama", "vocab_size": 32064, "max_position_embeddings": 4096},
        "vision_config": {
            "model_type": "clip_vision_model",
            "hidden_size": 1024,
            "intermediate_size": 4096,
            "num_hidden_layers": 24,
            "num_attention_heads": 16,
            "image_size": 336,
            "patch_size": 14,
            "projection_dim": 768,
        },
    },
    "InternVL3-8B": {
        "model_type": "internvl",
        "tie_word_embeddings": False,
        "text_config": {
            "model_type": "qwen2",
            "hidden_size": 3584,
            "intermediate_size": 18944,
            "num_hidden_layers": 28,
            "num_attention_heads": 28,
            "num_key_value_heads": 4,
            "vocab_size": 151674,
        },
        "vision_config": {
            "model_type": "internvl_vision",
            "attention_bias": True,
            "image_size": [448, 448],
            "patch_size": [14, 14],
        },
    },
    "Idefics3-8B": {
        "model_type": "idefics3",
        "scale_factor": 2,
        "tie_word_embeddings": False,
        "text_config": {
            "model_type": "llama",
            "hidden_size": 4096,
            "intermediate_size": 14336,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "vocab_size": 128259,
        },
        "vision_config": {
            "model_type": "idefics3",
            "hidden_size": 1152,
            "intermediate_size": 4304,
            "num_hidden_layers": 27,
            "num_attention_heads": 16,
            "image_size": 364,
            "patch_size": 14,
        },
    },
    "SmolVLM-2B": {
        "model_type": "smolvlm",
        "scale_factor": 3,
        "tie_word_embeddings": False,
        "text_config": {
            "model_type": "llama",
            "hidden_size": 2048,
            "intermediate_size": 8192,
            "num_hidden_layers": 24,
            "num_attention_heads": 32,
            "num_key_value_heads": 32,
            "vocab_size": 49155,
        },
        "vision_config": {
            "model_type": "smolvlm_vision",
            "hidden_size": 1152,
            "intermediate_size": 4304,
            "num_hidden_layers": 27,
            "num_attention_heads": 16,
            "image_size": 384,
            "patch_size": 14,
        },
    },
    "Mistral-Small-3.1-24B": {
        "model_type": "mistral3",
        "tie_word_embeddings": False,
        "text_config": {
            "model_type": "mistral",
            "hidden_size": 5120,
            "intermediate_size": 32768,
            "num_hidden_layers": 40,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "vocab_size": 131072,
        },
        "vision_config": {"model_type": "pixtral", "image_size": 1540, "patch_size": 14},
    },
    "llava-onevision-7b": {
        "model_type": "llava_onevision",
        "tie_word_embeddings": False,
        "text_config": {
            "model_type": "qwen2",
            "hidden_size": 3584,
            "intermediate_size": 18944,
            "num_hidden_layers": 28,
            "num_attention_heads": 28,
            "num_key_value_heads": 4,
            "vocab_size": 152000,
        },
        "vision_config": {
            "model_type": "siglip_vision_model",
            "hidden_size": 1152,
            "intermediate_size": 4304,
            "num_hidden_layers": 26,
            "num_attention_heads": 16,
            "image_size": 384,
            "patch_size": 14,
            "vision_use_head": False,
        },
    },
}


def skeleton(config: dict[str, Any]) -> Any:
    values = {key: value for key, value in config.items() if key != "model_type"}
    with torch.device("meta"):
        return AutoModelForImageTextToText.from_config(AutoConfig.for_model(config["model_type"], **values))


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_whole_model_has_the_parameters_of_its_class(name: str) -> None:
    config = PUBLISHED[name]
    whole = skeleton(config)
    shape = with_tower(shape_from_config(config))
    assert shape.num_parameters == sum(p.numel() for p in whole.parameters())
    parts = parts_of(config["model_type"])
    theirs, ours = dict[str, int](), dict[str, int]()
    for named, counts in (
        ([(n, p.numel()) for n, p in whole.named_parameters()], theirs),
        ([(p.name, p.numel) for p in parameters_of(shape)], ours),
    ):
        for parameter, size in named:
            part = parts.get(in_part(parameter, parts), "text")
            counts[part] = counts.get(part, 0) + size
    assert ours == theirs and set(ours) == {"vision", "projector", "text"}


def test_the_plan_counts_what_is_trained_and_says_what_a_picture_costs() -> None:
    from test_vision_choice import about, plan_of

    config = {**PUBLISHED["Qwen2.5-VL-3B"], "num_hidden_layers": 2}
    seen, text = plan_of(config), plan_of(config, images=False)
    assert seen.shape is not None and text.shape is not None and seen.shape.tower is not None
    beside = sum(p.numel for p in parameters_of(seen.shape)) - text.shape.num_parameters
    assert seen.shape.num_parameters == text.shape.num_parameters + beside > text.shape.num_parameters
    assert seen.shape.matmul_parameters == text.shape.matmul_parameters, "a token meets the text alone"
    assert seen.memory is not None and text.memory is not None and seen.memory.largest and text.memory.largest
    merger = sum(p.numel for p in parameters_of(seen.shape) if ".merger." in p.name)
    assert seen.memory.largest.optimizer - text.memory.largest.optimizer == 8 * merger, "the tower is frozen"
    reason = about(seen, "model.vision").reason
    assert "448 × 448 is 1,024 patches" in reason and "TFLOP forward" in reason
    assert Config.from_json(seen.config.to_json()) == seen.config


def test_flops_of_a_picture_are_those_of_its_products() -> None:
    """Counted on a Qwen2.5-VL tower: two for each multiplication of its layers, merger and scores."""
    tower = tower_of({"model_type": "qwen2_5_vl", "vision_config": {"hidden_size": 1280}}, 2048)
    assert tower is not None and (tower.pixels, tower.patches) == (448, 1024)
    layers = 32 * (4 * 1280 * 1280 + 3 * 3420 * 1280) * 2 * 1024
    scores = 32 * 4 * 1280 * 1024**2
    merger = (5120 * 5120 + 3584 * 5120) * 2 * 256
    patches = 1280 * 3 * 2 * 14 * 14 * 2 * 1024
    assert tower.flops() == layers + scores + merger + patches


def kept_by(model: torch.nn.Module, inputs: dict[str, torch.Tensor]) -> int:
    """Bytes of the storages that autograd saves in the tower and projector, without weights."""
    kept: dict[int, torch.Tensor] = {}
    weights = {t.untyped_storage().data_ptr() for t in (*model.parameters(), *model.buffers())}
    for tensor in inputs.values():
        weights.add(tensor.untyped_storage().data_ptr())

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        model.base_model.get_image_features(**inputs)
    return sum(tensor.untyped_storage().nbytes() for tensor in kept.values())


@pytest.mark.parametrize(("tower", "recompute"), [(True, False), (True, True), (False, False)])
@pytest.mark.parametrize("family", ["qwen2_5_vl", "llava"])
def test_what_a_picture_keeps_for_the_backward_is_what_autograd_saves(
    family: str, tower: bool, recompute: bool
) -> None:
    text = {"hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 50}
    sizes = {"hidden_size": 128, "intermediate_size": 320}
    if family == "llava":
        vision = {
            "model_type": "clip_vision_model",
            "num_hidden_layers": 4,
            "num_attention_heads": 4,
            **sizes,
        }
        vision |= {"image_size": 448, "patch_size": 14}
        inputs = {"pixel_values": torch.zeros(1, 3, 448, 448)}
        text |= {"model_type": "llama"}
    else:
        vision = {"depth": 4, "num_heads": 4, "out_hidden_size": 64, **sizes}
        inputs = {"pixel_values": torch.zeros(1024, 1176), "image_grid_thw": torch.tensor([[1, 32, 32]])}
    config = {"model_type": family, "text_config": text, "vision_config": vision}
    values = {key: value for key, value in config.items() if key != "model_type"}
    model = AutoModelForImageTextToText.from_config(AutoConfig.for_model(family, **values))
    parts = parts_of(family)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(tower or parts.get(in_part(name, parts)) != "vision")
    if recompute:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    counted = tower_of(config, 64)
    assert counted is not None and counted.pixel_values == inputs["pixel_values"].numel()
    ours = counted.saved(4, tower=tower, projector=True, recompute=recompute)
    if recompute:  # the layer that is computed again keeps its part in the backward
        of_hidden, of_inner = {"llava": (8, 3), "qwen2_5_vl": (13, 4)}[family]
        ours -= counted.patches * 4 * (of_hidden * 128 + of_inner * 320)
    assert kept_by(model.train(), inputs) == pytest.approx(ours, rel=0.15)
