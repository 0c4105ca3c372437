"""Tiny folders of models with a vision tower: config, weights, tokenizer with the family's own special tokens
and a chat template, and the processor's files as the folders on the hub have them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from support import WORDS
from vision_families import FAMILIES, TEXT, VisionFamily


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
