"""Transformers' whole processors, as judges of tokens and pixels: made without torchvision, which their parts
for videos ask for.
"""

from __future__ import annotations

import importlib
import json
import sys
import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from PIL import Image
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from paceline.plan.model.family import ImageFamily, image_family

#: Model type → (the judge's class within ``transformers.models``, its own settings, the image processor's)
SETTINGS: Mapping[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "qwen2_vl": ("qwen2_vl.processing_qwen2_vl:Qwen2VLProcessor", {}, {}),
    "qwen2_5_vl": ("qwen2_5_vl.processing_qwen2_5_vl:Qwen2_5_VLProcessor", {}, {"max_pixels": 100_000}),
    "qwen3_vl": (
        "qwen3_vl.processing_qwen3_vl:Qwen3VLProcessor",
        {},
        {"patch_size": 16, "size": {"shortest_edge": 16384, "longest_edge": 65536}},
    ),
    "gemma3": (
        "gemma3.processing_gemma3:Gemma3Processor",
        {"image_seq_length": 4},
        {"size": {"height": 56, "width": 56}},
    ),
    "gemma4": ("gemma4.processing_gemma4:Gemma4Processor", {}, {"max_soft_tokens": 70}),
    "internvl": (
        "internvl.processing_internvl:InternVLProcessor",
        {"image_seq_length": 4},
        {"size": {"height": 32, "width": 32}},
    ),
    "llava": (
        "llava.processing_llava:LlavaProcessor",
        {"patch_size": 14, "vision_feature_select_strategy": "default", "num_additional_image_tokens": 1},
        {"crop_size": {"height": 56, "width": 56}, "size": {"shortest_edge": 56}},
    ),
    "llava_next": (
        "llava_next.processing_llava_next:LlavaNextProcessor",
        {"patch_size": 14, "vision_feature_select_strategy": "default", "num_additional_image_tokens": 1},
        {
            "crop_size": {"height": 56, "width": 56},
            "size": {"shortest_edge": 56},
            "image_grid_pinpoints": [[56, 112], [112, 56], [112, 112], [168, 56], [56, 168]],
        },
    ),
    "llava_onevision": (
        "llava_onevision.processing_llava_onevision:LlavaOnevisionProcessor",
        {
            "num_image_tokens": 16,
            "vision_feature_select_strategy": "full",
            "vision_aspect_ratio": "anyres_max_9",
        },
        {
            "size": {"height": 56, "width": 56},
            "image_grid_pinpoints": [[56 * a, 56 * b] for a in range(1, 7) for b in range(1, 7)],
        },
    ),
    "mistral3": (
        "pixtral.processing_pixtral:PixtralProcessor",
        {"patch_size": 14, "spatial_merge_size": 2},
        {"patch_size": 14, "size": {"longest_edge": 200}},
    ),
    "idefics3": (
        "idefics3.processing_idefics3:Idefics3Processor",
        {"image_seq_len": 4},
        {"size": {"longest_edge": 112}, "max_image_size": {"longest_edge": 28}},
    ),
    "smolvlm": (
        "smolvlm.processing_smolvlm:SmolVLMProcessor",
        {"image_seq_len": 4},
        {"size": {"longest_edge": 96}, "max_image_size": {"longest_edge": 32}},
    ),
    "glm4v": (
        "glm4v.processing_glm4v:Glm4vProcessor",
        {},
        {"size": {"shortest_edge": 12544, "longest_edge": 200000}},
    ),
    "glm46v": ("glm46v.processing_glm46v:Glm46VProcessor", {}, {}),
}
_MORE = ("<end_of_utterance>", "<video>", "<|video_pad|>", "<|video|>", "<|vision_start|>", "<|vision_end|>")
_ROWS = tuple(f"<row_{r}_col_{c}>" for r in range(1, 7) for c in range(1, 7))


def family_of(kind: str) -> ImageFamily:
    """The record of a model type, which has one."""
    family = image_family(kind)
    assert family is not None
    return family


def image_tokenizer(kind: str) -> PreTrainedTokenizerFast:
    """A tokenizer of bytes with the family's tokens, which are known by the names that processors read."""
    family = family_of(kind)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {letter: number for number, letter in enumerate(alphabet)}
    vocabulary["ĊĊ"] = len(vocabulary)
    backend = Tokenizer(models.BPE(vocabulary, [("Ċ", "Ċ")]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    named = {attribute: text for attribute, text in family.tokens.values() if attribute}
    named |= {"video_token": "<video>", "audio_token": "<audio>", "boa_token": "<boa>", "eoa_token": "<eoa>"}
    texts = [*(text for _, text in family.tokens.values()), *named.values(), *_MORE, *_ROWS]
    added = [AddedToken(text, special=True, normalized=False) for text in dict.fromkeys(texts)]
    backend.add_tokens(["<s>", "</s>"])
    backend.add_special_tokens(added)
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token="<s>",
        eos_token="</s>",
        pad_token="</s>",
        extra_special_tokens=named,
    )


def image_folder(kind: str, folder: Path) -> tuple[Path, dict[str, Any]]:
    """A model's folder with tokenizer and the settings of its processors; return its config, too."""
    _, whole, images = SETTINGS[kind]
    folder.mkdir(parents=True, exist_ok=True)
    image_tokenizer(kind).save_pretrained(folder)
    config = {"model_type": kind, "vision_config": {}}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "processor_config.json").write_text(json.dumps(whole))
    (folder / "preprocessor_config.json").write_text(json.dumps(images))
    return folder, config


def judge(kind: str, **options: Any) -> Any:
    """The whole processor of a model type, with Transformers' image processor for Pillow."""
    path, whole, images = SETTINGS[kind]
    if kind == "mistral3":  # its module asks for torchvision, of which it reads one function alone
        name = "transformers.models.pixtral.image_processing_pixtral"
        pil = importlib.import_module("transformers.models.pixtral.image_processing_pil_pixtral")
        sys.modules.setdefault(
            name, types.SimpleNamespace(get_resize_output_image_size=pil.get_resize_output_image_size)
        )  # type: ignore[arg-type]
    module = importlib.import_module(f"transformers.models.{path.split(':')[0]}")
    if kind == "smolvlm":  # words for numbers of frames
        module.num2words = str  # type: ignore[attr-defined]
    unchecked = {"check_argument_for_proper_class": lambda self, name, argument: None}
    kind_of = type("Judge", (getattr(module, path.split(":")[1]),), unchecked)
    names = set(getattr(module, path.split(":")[1]).get_attributes())
    where, name = family_of(kind).processor.split(":")
    processor = getattr(importlib.import_module(f"transformers.models.{where}"), name)(
        **{**images, **options}
    )
    parts = {name: SimpleNamespace() for name in names - {"image_processor", "tokenizer"}}
    return kind_of(image_processor=processor, tokenizer=image_tokenizer(kind), **parts, **whole)


def judged(whole: Any, text: str, images: Sequence[Image.Image]) -> tuple[list[int], dict[str, np.ndarray]]:
    """The token ids and arrays that a whole processor makes of a text with pictures."""
    given = [[*images]] if "Onevision" in type(whole).__mro__[1].__name__ else [*images]
    made = whole(images=given, text=[text], add_special_tokens=False, return_tensors="np")
    ids = np.asarray(made.pop("input_ids"))[0].tolist()
    return ids, {name: np.asarray(values) for name, values in made.items()}
