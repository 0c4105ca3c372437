"""Tiny folders of models with a vision tower: config, weights, tokenizer with the family's own special tokens
and a chat template, and the processor's files as the folders on the hub have them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from support import WORDS

HALF = {"image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5]}
CLIP = {
    "image_mean": [0.48145466, 0.4578275, 0.40821073],
    "image_std": [0.26862954, 0.26130258, 0.27577711],
}
_PLAIN = {"do_convert_rgb": True, "do_normalize": True, "do_rescale": True, "do_resize": True}
TEXT: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
    "max_position_embeddings": 512,
    "head_dim": 8,
}


@dataclass(frozen=True)
class VisionFamily:
    """What a folder of a family has.

    text, vision  sizes of the parts' configs, beside those of ``TEXT``
    top           further keys of the config; a value ``"<token>"`` in ``ids`` becomes that token's id
    tokens        special tokens; ``named``: those that the tokenizer has as attributes
    image, turn   how the chat template writes an image, and a turn (``{role}``, ``{content}``)
    files         the processor's files
    """

    text: Mapping[str, Any]
    vision: Mapping[str, Any]
    ids: Mapping[str, str]
    tokens: tuple[str, ...]
    image: str
    turn: str
    files: Mapping[str, Mapping[str, Any]]
    top: Mapping[str, Any] = field(default_factory=dict)
    named: Mapping[str, str] = field(default_factory=dict)
    end: str = "<|im_end|>"
    pad: str = "<|endoftext|>"
    bos: str | None = None


_CHATML = "<|im_start|>{role}\n{content}<|im_end|>\n"
_QWEN = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>")
_QWEN_IDS = {
    "image_token_id": "<|image_pad|>",
    "video_token_id": "<|video_pad|>",
    "vision_start_token_id": "<|vision_start|>",
    "vision_end_token_id": "<|vision_end|>",
}


def _qwen_files(kind: str) -> dict[str, dict[str, Any]]:
    return {
        "preprocessor_config.json": {
            "min_pixels": 784,
            "max_pixels": 7056,
            "patch_size": 14,
            "temporal_patch_size": 2,
            "merge_size": 2,
            **CLIP,
            "image_processor_type": "Qwen2VLImageProcessor",
            "processor_class": kind,
        }
    }


FAMILIES: dict[str, VisionFamily] = {
    "qwen2_5_vl": VisionFamily(
        text={"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [1, 1, 2]}},
        vision={
            "hidden_size": 16,
            "out_hidden_size": 32,
            "depth": 2,
            "num_heads": 2,
            "intermediate_size": 24,
            "fullatt_block_indexes": [1],
            "window_size": 28,
        },
        ids=_QWEN_IDS,
        tokens=(*_QWEN, "<|image_pad|>", "<|video_pad|>"),
        image="<|vision_start|><|image_pad|><|vision_end|>",
        turn=_CHATML,
        files=_qwen_files("Qwen2_5_VLProcessor"),
    ),
    "gemma3": VisionFamily(
        text={"sliding_window": 6, "layer_types": ["sliding_attention", "full_attention"]},
        vision={
            "hidden_size": 16,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "intermediate_size": 24,
            "image_size": 56,
            "patch_size": 14,
        },
        ids={
            "image_token_index": "<image_soft_token>",
            "boi_token_index": "<start_of_image>",
            "eoi_token_index": "<end_of_image>",
        },
        top={"mm_tokens_per_image": 4},
        tokens=(
            *("<pad>", "<eos>", "<bos>", "<start_of_turn>", "<end_of_turn>"),
            *("<start_of_image>", "<end_of_image>", "<image_soft_token>"),
        ),
        image="<start_of_image>",
        turn="<start_of_turn>{role}\n{content}<end_of_turn>\n",
        files={
            "preprocessor_config.json": {
                **_PLAIN,
                **HALF,
                "do_pan_and_scan": None,
                "image_seq_length": 4,
                "image_processor_type": "Gemma3ImageProcessor",
                "processor_class": "Gemma3Processor",
                "resample": 2,
                "rescale_factor": 0.00392156862745098,
                "size": {"height": 56, "width": 56},
            },
            "processor_config.json": {"image_seq_length": 4, "processor_class": "Gemma3Processor"},
        },
        named={
            "image_token": "<image_soft_token>",
            "boi_token": "<start_of_image>",
            "eoi_token": "<end_of_image>",
        },
        end="<end_of_turn>",
        pad="<pad>",
        bos="<bos>",
    ),
    "llava": VisionFamily(
        text={"model_type": "llama"},
        vision={
            "model_type": "clip_vision_model",
            "hidden_size": 16,
            "projection_dim": 16,
            "num_hidden_layers": 3,
            "num_attention_heads": 2,
            "intermediate_size": 24,
            "image_size": 28,
            "patch_size": 14,
        },
        ids={"image_token_index": "<image>"},
        top={
            "image_seq_length": 4,
            "vision_feature_layer": -2,
            "vision_feature_select_strategy": "default",
        },
        tokens=("<unk>", "<s>", "</s>", "<pad>", "<image>"),
        image="<image>\n",
        turn="{role}: {content}</s>",
        files={
            "preprocessor_config.json": {
                **_PLAIN,
                **CLIP,
                "crop_size": {"height": 28, "width": 28},
                "do_center_crop": True,
                "image_processor_type": "CLIPImageProcessor",
                "processor_class": "LlavaProcessor",
                "resample": 3,
                "rescale_factor": 0.00392156862745098,
                "size": {"shortest_edge": 28},
            },
            "processor_config.json": {
                "image_token": "<image>",
                "num_additional_image_tokens": 1,
                "patch_size": 14,
                "processor_class": "LlavaProcessor",
                "vision_feature_select_strategy": "default",
            },
        },
        named={"image_token": "<image>"},
        end="</s>",
        pad="<pad>",
        bos="<s>",
    ),
}


def vision_tokenizer(family: VisionFamily) -> Any:
    """A byte-level tokenizer with the family's special tokens and its chat template."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE(unk_token=None))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=256 + len(family.tokens) + 40,
        special_tokens=list(family.tokens),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([" ".join(WORDS)] * 20, trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=family.pad,
        eos_token=family.end,
        bos_token=family.bos,
        additional_special_tokens=[t for t in family.tokens if t not in (family.pad, family.end)],
        extra_special_tokens=dict(family.named),
    )
    fast.chat_template = _template(family)
    return fast


def _template(family: VisionFamily) -> str:
    """Content is a text, or parts of types ``image`` and ``text``, as in the templates on the hub."""
    before, after = family.turn.split("{content}")
    begin, rest = (f"{{{{ {json.dumps(x)} }}}}" if x else "" for x in before.split("{role}"))
    role, end = "{{ m['role'] }}", f"{{{{ {json.dumps(after)} }}}}"
    parts = (
        "{% if m['content'] is string %}{{ m['content'] }}{% else %}{% for p in m['content'] %}"
        f"{{% if p['type'] == 'image' %}}{{{{ {json.dumps(family.image)} }}}}"
        "{% else %}{{ p['text'] }}{% endif %}{% endfor %}{% endif %}"
    )
    generated = f"{{% generation %}}{parts}{end}{{% endgeneration %}}"
    asked = f"{begin}assistant{rest}"
    return (
        "{% for m in messages %}"
        f"{begin}{role}{rest}"
        f"{{% if m['role'] == 'assistant' %}}{generated}{{% else %}}{parts}{end}{{% endif %}}"
        f"{{% endfor %}}{{% if add_generation_prompt %}}{asked}{{% endif %}}"
    )


def vision_config(kind: str, vocab: int, ids: Mapping[str, int], **top: Any) -> Any:
    """The config of a tiny whole model; ``ids``: of its special tokens."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    family = FAMILIES[kind]
    numbers = {key: ids[token] for key, token in family.ids.items()}
    text = {**TEXT, "vocab_size": vocab, "pad_token_id": ids[family.pad], **family.text}
    text |= {"eos_token_id": ids[family.end], "bos_token_id": None if family.bos is None else ids[family.bos]}
    return CONFIG_MAPPING[kind](
        **{**numbers, **family.top, "text_config": text, "vision_config": dict(family.vision), **top}
    )


def write_vision_folder(folder: Path, kind: str, seed: int = 0, **top: Any) -> Path:
    """A folder of the type ``kind`` with drawn weights, spread so that every part matters."""
    import torch
    from transformers import AutoModelForImageTextToText

    family = FAMILIES[kind]
    tokenizer = vision_tokenizer(family)
    ids = {token: tokenizer.convert_tokens_to_ids(token) for token in family.tokens}
    config = vision_config(kind, len(tokenizer), ids, **top)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = AutoModelForImageTextToText.from_config(config)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn(parameter.shape), alpha=0.1)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    for name, content in family.files.items():
        (folder / name).write_text(json.dumps(content, indent=1))
    return folder
