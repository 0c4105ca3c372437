"""What the tiny folders of ``vision_models`` have, by family: sizes, special tokens, chat template, the
processor's files.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

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
_RESCALE = 0.00392156862745098
_CLIP_TOWER = {
    "model_type": "clip_vision_model",
    "hidden_size": 16,
    "projection_dim": 16,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "image_size": 28,
    "patch_size": 14,
}
_SMALL = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "image_size": 56,
    "patch_size": 14,
}
_GRID = {"hidden_size": 16, "out_hidden_size": 32, "depth": 2, "num_heads": 2, "intermediate_size": 24}
_EXPERTS = {"moe_intermediate_size": 16, "num_experts_per_tok": 2}


def _mrope(**more: Any) -> dict[str, Any]:
    rope = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [1, 1, 2], **more}
    return {"rope_parameters": rope}


def _qwen(
    text: Mapping[str, Any], vision: Mapping[str, Any], processor: str, patch: int = 14, **means: Any
) -> VisionFamily:
    side = 2 * patch
    return VisionFamily(
        text=text,
        vision=vision,
        ids=_QWEN_IDS,
        tokens=(*_QWEN, "<|image_pad|>", "<|video_pad|>"),
        image="<|vision_start|><|image_pad|><|vision_end|>",
        turn=_CHATML,
        files={
            "preprocessor_config.json": {
                "min_pixels": side * side,
                "max_pixels": 9 * side * side,
                "patch_size": patch,
                "temporal_patch_size": 2,
                "merge_size": 2,
                **(means or CLIP),
                "image_processor_type": "Qwen2VLImageProcessor",
                "processor_class": processor,
            }
        },
    )


_QWEN3_TOWER = {**_GRID, "patch_size": 14, "num_position_embeddings": 16}
_DEEP = {**_QWEN3_TOWER, "deepstack_visual_indexes": [0, 1]}
_LINEAR = {
    **_mrope(partial_rotary_factor=0.25, mrope_interleaved=True),
    "head_dim": 32,
    "layer_types": ["linear_attention", "full_attention"],
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
}
_GLM_TOKENS = (
    *("<|endoftext|>", "[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>"),
    *("<|begin_of_image|>", "<|end_of_image|>", "<|begin_of_video|>", "<|end_of_video|>"),
    *("<|image|>", "<|video|>"),
)


def _glm(text: Mapping[str, Any], processor: str, kind: str = "Glm4vImageProcessor") -> VisionFamily:
    return VisionFamily(
        text=text,
        vision={**_GRID, "image_size": 56, "patch_size": 14},
        ids={
            "image_token_id": "<|image|>",
            "video_token_id": "<|video|>",
            "image_start_token_id": "<|begin_of_image|>",
            "image_end_token_id": "<|end_of_image|>",
            "video_start_token_id": "<|begin_of_video|>",
            "video_end_token_id": "<|end_of_video|>",
        },
        tokens=_GLM_TOKENS,
        image="<|begin_of_image|><|image|><|end_of_image|>",
        turn="<|{role}|>\n{content}",
        files={
            "preprocessor_config.json": {
                "size": {"shortest_edge": 784 * 2, "longest_edge": 9 * 784 * 2},
                "do_rescale": True,
                "patch_size": 14,
                "temporal_patch_size": 2,
                "merge_size": 2,
                **CLIP,
                "image_processor_type": kind,
                "processor_class": processor,
            }
        },
        end="<|user|>",
    )


_GLM_ROPE = _mrope(partial_rotary_factor=0.5)
_ANYRES = [[28, 56], [56, 28], [56, 56]]


def _llava(processor: str, image_processor: str, **sizes: Any) -> dict[str, Any]:
    """LLaVA's files: the image processor's, and the whole processor's."""
    return {
        "preprocessor_config.json": {
            **_PLAIN,
            **CLIP,
            "crop_size": {"height": 28, "width": 28},
            "do_center_crop": True,
            "image_processor_type": image_processor,
            "processor_class": processor,
            "resample": 3,
            "rescale_factor": _RESCALE,
            "size": {"shortest_edge": 28},
            **sizes,
        },
        "processor_config.json": {
            "image_token": "<image>",
            "num_additional_image_tokens": 1,
            "patch_size": 14,
            "processor_class": processor,
            "vision_feature_select_strategy": "default",
        },
    }


_LLAVA_TOKENS = ("<unk>", "<s>", "</s>", "<pad>", "<image>")


def _split(processor: str, image_processor: str, vision: Mapping[str, Any]) -> VisionFamily:
    """Idefics 3 and SmolVLM, which cut a picture into tiles beside the whole."""
    rows = tuple(f"<row_{r}_col_{c}>" for r in range(1, 4) for c in range(1, 4))
    return VisionFamily(
        text={"model_type": "llama"},
        vision=vision,
        ids={"image_token_id": "<image>"},
        top={"scale_factor": 2},
        tokens=(
            *("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<end_of_utterance>"),
            *("<fake_token_around_image>", "<global-img>", "<image>", *rows),
        ),
        image="<image>",
        turn="<|im_start|>{role}: {content}<end_of_utterance>\n",
        files={
            "preprocessor_config.json": {
                **_PLAIN,
                **HALF,
                "do_image_splitting": True,
                "do_pad": True,
                "image_processor_type": image_processor,
                "max_image_size": {"longest_edge": 56},
                "processor_class": processor,
                "resample": 1,
                "rescale_factor": _RESCALE,
                "size": {"longest_edge": 112},
            },
            "processor_config.json": {"image_seq_len": 4, "processor_class": processor},
        },
        named={
            "image_token": "<image>",
            "fake_image_token": "<fake_token_around_image>",
            "global_image_token": "<global-img>",
            "end_of_utterance_token": "<end_of_utterance>",
        },
        end="<end_of_utterance>",
    )


FAMILIES: dict[str, VisionFamily] = {
    "qwen2_vl": _qwen(
        _mrope(),
        {"embed_dim": 16, "hidden_size": 32, "depth": 2, "num_heads": 2, "mlp_ratio": 2, "patch_size": 14},
        "Qwen2VLProcessor",
    ),
    "qwen2_5_vl": _qwen(
        _mrope(), {**_GRID, "fullatt_block_indexes": [1], "window_size": 56}, "Qwen2_5_VLProcessor"
    ),
    "qwen3_vl": _qwen(_mrope(mrope_interleaved=True), _DEEP, "Qwen3VLProcessor", **HALF),
    "qwen3_vl_moe": _qwen(
        {**_mrope(mrope_interleaved=True), **_EXPERTS, "num_local_experts": 4},
        _DEEP,
        "Qwen3VLProcessor",
        **HALF,
    ),
    "qwen3_5": _qwen(_LINEAR, _QWEN3_TOWER, "Qwen3VLProcessor", **HALF),
    "qwen3_5_moe": _qwen(
        {**_LINEAR, **_EXPERTS, "num_experts": 4, "shared_expert_intermediate_size": 16},
        _QWEN3_TOWER,
        "Qwen3VLProcessor",
        **HALF,
    ),
    "glm4v": _glm({**_GLM_ROPE, "head_dim": 16}, "Glm4vProcessor"),
    "glm46v": _glm({**_GLM_ROPE, "head_dim": 16}, "Glm46VProcessor", "Glm46VImageProcessor"),
    "glm4v_moe": _glm(
        {**_GLM_ROPE, **_EXPERTS, "head_dim": 16, "n_routed_experts": 4, "first_k_dense_replace": 1},
        "Glm4vProcessor",
    ),
    "gemma3": VisionFamily(
        text={"sliding_window": 6, "layer_types": ["sliding_attention", "full_attention"]},
        vision=_SMALL,
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
                "rescale_factor": _RESCALE,
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
    "gemma4": VisionFamily(
        text={
            "sliding_window": 6,
            "layer_types": ["sliding_attention", "full_attention"],
            "use_bidirectional_attention": "vision",
            "hidden_size_per_layer_input": 4,
            "vocab_size_per_layer_input": 340,
            "per_layer_config": {},
        },
        vision={
            "hidden_size": 16,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "num_key_value_heads": 2,
            "head_dim": 8,
            "intermediate_size": 24,
            "patch_size": 16,
            "position_embedding_size": 64,
        },
        ids={
            "image_token_id": "<|image|>",
            "boi_token_id": "<|image>",
            "eoi_token_id": "<image|>",
            "video_token_id": "<|video|>",
            "audio_token_id": "<|audio|>",
            "boa_token_id": "<|audio>",
            "eoa_token_index": "<audio|>",
        },
        tokens=(
            *("<pad>", "<eos>", "<bos>", "<|turn>", "<turn|>", "<|image>", "<image|>", "<|image|>"),
            *("<|video|>", "<|audio|>", "<|audio>", "<audio|>"),
        ),
        image="<|image|>",
        turn="<|turn>{role}\n{content}<turn|>\n",
        files={
            "preprocessor_config.json": {
                "image_processor_type": "Gemma4ImageProcessor",
                "max_soft_tokens": 70,
                "patch_size": 16,
                "pooling_kernel_size": 3,
                "processor_class": "Gemma4Processor",
            },
            "processor_config.json": {"image_seq_length": 70, "processor_class": "Gemma4Processor"},
        },
        named={"image_token": "<|image|>", "boi_token": "<|image>", "eoi_token": "<image|>"},
        end="<turn|>",
        pad="<pad>",
        bos="<bos>",
    ),
    "internvl": VisionFamily(
        text={"model_type": "qwen2"},
        vision={**_SMALL, "image_size": [56, 56], "patch_size": [14, 14]},
        ids={"image_token_id": "<IMG_CONTEXT>"},
        top={"image_seq_length": 4, "downsample_ratio": 0.5},
        tokens=(*_QWEN[:3], "<img>", "</img>", "<IMG_CONTEXT>", "<video>"),
        image="<IMG_CONTEXT>\n",
        turn=_CHATML,
        files={
            "preprocessor_config.json": {
                **_PLAIN,
                "image_mean": [0.485, 0.456, 0.406],
                "image_std": [0.229, 0.224, 0.225],
                "crop_to_patches": True,
                "image_processor_type": "GotOcr2ImageProcessor",
                "max_patches": 4,
                "min_patches": 1,
                "processor_class": "InternVLProcessor",
                "resample": 3,
                "rescale_factor": _RESCALE,
                "size": {"height": 56, "width": 56},
            },
            "processor_config.json": {"image_seq_length": 4, "processor_class": "InternVLProcessor"},
        },
        named={
            "start_image_token": "<img>",
            "end_image_token": "</img>",
            "context_image_token": "<IMG_CONTEXT>",
            "video_token": "<video>",
        },
    ),
    "llava": VisionFamily(
        text={"model_type": "llama"},
        vision=_CLIP_TOWER,
        ids={"image_token_index": "<image>"},
        top={"image_seq_length": 4, "vision_feature_layer": -2, "vision_feature_select_strategy": "default"},
        tokens=_LLAVA_TOKENS,
        image="<image>\n",
        turn="{role}: {content}</s>",
        files=_llava("LlavaProcessor", "CLIPImageProcessor"),
        named={"image_token": "<image>"},
        end="</s>",
        pad="<pad>",
        bos="<s>",
    ),
    "vipllava": VisionFamily(
        text={"model_type": "llama"},
        vision=_CLIP_TOWER,
        ids={"image_token_index": "<image>"},
        top={"image_seq_length": 4, "vision_feature_layers": [-2, -1, 1]},
        tokens=_LLAVA_TOKENS,
        image="<image>\n",
        turn="{role}: {content}</s>",
        files=_llava("LlavaProcessor", "CLIPImageProcessor"),
        named={"image_token": "<image>"},
        end="</s>",
        pad="<pad>",
        bos="<s>",
    ),
    "llava_next": VisionFamily(
        text={"model_type": "mistral", "sliding_window": None},
        vision=_CLIP_TOWER,
        ids={"image_token_index": "<image>"},
        top={"image_grid_pinpoints": _ANYRES},
        tokens=_LLAVA_TOKENS,
        image="<image>\n",
        turn="{role}: {content}</s>",
        files=_llava("LlavaNextProcessor", "LlavaNextImageProcessor", image_grid_pinpoints=_ANYRES),
        named={"image_token": "<image>"},
        end="</s>",
        pad="<pad>",
        bos="<s>",
    ),
    "llava_onevision": VisionFamily(
        text={"model_type": "qwen2"},
        vision={**_SMALL, "model_type": "siglip_vision_model", "image_size": 28, "vision_use_head": False},
        ids={"image_token_index": "<image>", "video_token_index": "<video>"},
        top={"image_grid_pinpoints": _ANYRES, "vision_aspect_ratio": "anyres_max_9"},
        tokens=(*_QWEN[:3], "<image>", "<video>"),
        image="<image>",
        turn=_CHATML,
        files={
            "preprocessor_config.json": {
                **_PLAIN,
                **HALF,
                "do_pad": True,
                "image_grid_pinpoints": _ANYRES,
                "image_processor_type": "LlavaOnevisionImageProcessor",
                "processor_class": "LlavaOnevisionProcessor",
                "resample": 3,
                "rescale_factor": _RESCALE,
                "size": {"height": 28, "width": 28},
            },
            "processor_config.json": {
                "image_token": "<image>",
                "num_image_tokens": 4,
                "processor_class": "LlavaOnevisionProcessor",
                "video_token": "<video>",
                "vision_aspect_ratio": "anyres_max_9",
                "vision_feature_select_strategy": "full",
            },
        },
        named={"image_token": "<image>", "video_token": "<video>"},
    ),
    "mistral3": VisionFamily(
        text={"model_type": "mistral", "sliding_window": None},
        vision={**_SMALL, "model_type": "pixtral", "image_size": 84, "head_dim": 8},
        ids={"image_token_index": "[IMG]"},
        top={"spatial_merge_size": 2, "vision_feature_layer": -1},
        tokens=(
            *("<unk>", "<s>", "</s>", "<pad>", "[INST]", "[/INST]"),
            *("[IMG]", "[IMG_BREAK]", "[IMG_END]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]"),
        ),
        image="[IMG]",
        turn="[{role}]{content}</s>",
        files={
            "preprocessor_config.json": {
                **_PLAIN,
                **CLIP,
                "image_processor_type": "PixtralImageProcessor",
                "patch_size": 28,
                "processor_class": "PixtralProcessor",
                "resample": 3,
                "rescale_factor": _RESCALE,
                "size": {"longest_edge": 84},
            },
            "processor_config.json": {
                "image_break_token": "[IMG_BREAK]",
                "image_end_token": "[IMG_END]",
                "image_token": "[IMG]",
                "patch_size": 14,
                "processor_class": "PixtralProcessor",
                "spatial_merge_size": 2,
            },
        },
        end="</s>",
        pad="<pad>",
        bos="<s>",
    ),
    "smolvlm": _split("SmolVLMProcessor", "SmolVLMImageProcessor", _SMALL),
    "idefics3": _split("Idefics3Processor", "Idefics3ImageProcessor", _SMALL),
}
