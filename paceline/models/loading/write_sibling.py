"""Write a shrunken copy of a model with a byte tokenizer: ``python -m … JOB`` (a JSON file).

The job names the model's config, the ``folder``, the tokenizer's ``tokens`` besides bytes, and the
``adapter`` to write next to it, if any. Weights are drawn from a fixed seed, wide enough for losses to
differ.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from paceline.core.files import read_text
from paceline.core.json_types import JsonObject
from paceline.launch.program import program

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

PAD, END, BEGIN, TURN, OVER = "<|pad|>", "<|end|>", "<|begin_of_text|>", "<|im_start|>", "<|im_end|>"
#: each turn between marks; what the assistant writes is marked as its own
CHAT_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n"
    "{% if m['role'] == 'assistant' %}{% generation %}{{ m['content'] }}<|end|>{% endgeneration %}"
    "{% else %}{{ m['content'] }}<|im_end|>\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_SPREAD = 0.2  # of the weights


@program
def main() -> int:
    """Write model, tokenizer and adapter into the job's folder."""
    job = json.loads(read_text(Path(sys.argv[1])))
    folder = Path(job["folder"])
    tokenizer = write_tokenizer(folder / "model", job["tokens"])
    model = write_model(folder / "model", job["config"], tokenizer)
    if job.get("adapter"):
        write_adapter(folder / "adapter", model, job["adapter"])
    return 0


def write_tokenizer(folder: Path, tokens: Sequence[str]) -> PreTrainedTokenizerFast:
    """Write a tokenizer with a token for each byte and each of ``tokens``."""
    # Not typed by their libraries
    library, fast = import_module("tokenizers"), import_module("transformers").PreTrainedTokenizerFast
    pre_tokenizers = import_module("tokenizers.pre_tokenizers")

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = [PAD, END, *alphabet]
    bytewise = library.Tokenizer(library.models.BPE({word: index for index, word in enumerate(words)}, []))
    bytewise.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bytewise.decoder = library.decoders.ByteLevel()
    special = list(dict.fromkeys((BEGIN, TURN, OVER, *tokens)))
    names = {"pad_token": PAD, "eos_token": END, "bos_token": BEGIN}
    made: PreTrainedTokenizerFast = fast(tokenizer_object=bytewise, **names)
    made.add_special_tokens({"additional_special_tokens": special})
    made.chat_template = CHAT_TEMPLATE
    made.save_pretrained(folder)
    return made


def write_model(folder: Path, config: JsonObject, tokenizer: PreTrainedTokenizerFast) -> PreTrainedModel:
    """Write a model of a config, its vocabulary cut to the tokenizer's."""
    import torch

    transformers = import_module("transformers")

    torch.manual_seed(0)
    sizes = {key: value for key, value in config.items() if key != "model_type"}
    sizes |= {"vocab_size": (len(tokenizer) + 31) // 32 * 32, "max_position_embeddings": 512}
    sizes |= {"eos_token_id": tokenizer.eos_token_id, "bos_token_id": tokenizer.bos_token_id}
    sizes |= {"pad_token_id": tokenizer.pad_token_id, "initializer_range": _SPREAD, "dtype": "float32"}
    made = transformers.AutoConfig.for_model(config["model_type"], **sizes)
    model: PreTrainedModel = transformers.AutoModelForCausalLM.from_config(
        made, dtype=torch.float32, trust_remote_code=False
    )
    model.save_pretrained(folder)
    return model


def write_adapter(folder: Path, model: PreTrainedModel, options: JsonObject) -> None:
    """Write an adapter with a nonzero second factor, for both programs: each would draw another one
    itself."""
    import torch

    peft = import_module("peft")

    torch.manual_seed(1)
    adapted = peft.get_peft_model(model, peft.LoraConfig(**options, task_type="CAUSAL_LM"))
    for name, parameter in adapted.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.02)
    adapted.save_pretrained(str(folder))


if __name__ == "__main__":
    sys.exit(main())
