"""The files with which sentence-transformers loads an embedding model or a reranker.

Older versions can also read an embedding model's files. Texts are encoded without the tokenizer's chat
template.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from paceline.checkpoint.format.durable_files import write_fresh
from paceline.checkpoint.load.reader import CheckpointReader
from paceline.config.schema import Config
from paceline.config.sections.algorithms.supervised import EmbeddingOptions
from paceline.core.json_types import Json, as_object, value_at
from paceline.plan.algorithms.spec import algorithm_spec

_MODULES = "sentence_transformers.models"
#: ``pooling`` → the key of its file that is true
_POOLINGS = {"cls": "cls_token", "mean": "mean_tokens", "last": "lasttoken"}
_TRANSFORMER = "sentence_transformers.base.modules.transformer.Transformer"
_LOGITS: Mapping[str, Json] = {
    "transformer_task": "sequence-classification",
    "modality_config": {"text": {"method": "forward", "method_output_name": "logits"}},
    "module_output_name": "scores",
}


def write_retrieval_files(stage: Path, reader: CheckpointReader) -> None:
    """Write the files of its sentence-transformers class into ``stage``; nothing for other models."""
    name = value_at(reader.state.get("config"), "training.algorithm")
    # a converted checkpoint has no config; an algorithm of the user's own is not imported for this
    if not isinstance(name, str) or ":" in name or not algorithm_spec(name).loaded_by:
        return
    config, spec = Config.from_json(as_object(reader.state["config"])), algorithm_spec(name)
    data = config.data
    prompts: dict[str, Json] = {"query": data.query_prompt, "document": data.document_prompt}
    about: dict[str, Json] = {"model_type": spec.loaded_by, "prompts": prompts, "default_prompt_name": None}
    files: dict[str, Json] = {}
    if spec.scores_pairs:
        files["modules.json"] = _modules({"": _TRANSFORMER})
        files["sentence_bert_config.json"] = dict(_LOGITS)
        about |= {"activation_fn": "torch.nn.modules.activation.Sigmoid", "prompts": {}}
    else:
        options = EmbeddingOptions.model_validate(spec.options_of(config.training))
        width = as_object(reader.side_json("config.json"))["hidden_size"]
        modules = {"": f"{_MODULES}.Transformer", "1_Pooling": f"{_MODULES}.Pooling"}
        pooling = {f"pooling_mode_{key}": name == options.pooling for name, key in _POOLINGS.items()}
        files["1_Pooling/config.json"] = {
            "word_embedding_dimension": width,
            **pooling,
            "include_prompt": True,
        }
        if options.normalize:
            modules["2_Normalize"] = f"{_MODULES}.Normalize"
            files["2_Normalize/config.json"] = {}
        files["modules.json"] = _modules(modules)
        files["sentence_bert_config.json"] = {"max_seq_length": data.max_length, "do_lower_case": False}
        about["similarity_fn_name"] = "cosine" if options.normalize else "dot"
    files["config_sentence_transformers.json"] = about
    for name, contents in files.items():
        (stage / name).parent.mkdir(exist_ok=True)
        (stage / name).unlink(missing_ok=True)  # of the base model's folder
        write_fresh(stage / name, [json.dumps(contents, indent=2, ensure_ascii=False).encode()])


def _modules(types: Mapping[str, str]) -> Json:
    """Return ``modules.json`` from the folder of each module and its class."""
    return [
        {"idx": number, "name": str(number), "path": path, "type": kind}
        for number, (path, kind) in enumerate(types.items())
    ]
