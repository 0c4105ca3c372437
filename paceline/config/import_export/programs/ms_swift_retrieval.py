"""ms-swift's embedding models and rerankers: their losses, and what it writes around their texts."""

from __future__ import annotations

from paceline.config.import_export.local_files import config_of
from paceline.config.import_export.programs.ms_swift_templates import formats_of, template_names
from paceline.config.import_export.verdicts import KeyReader

#: ms-swift's task, and its loss there → ours
_LOSSES = {
    "embedding": {"infonce": "infonce", "cosine_similarity": "cosine_similarity"},
    "reranker": {"pointwise_reranker": "pointwise", "listwise_reranker": "listwise"},
}
#: variables that its losses read → their defaults
_TEMPERATURES = {"infonce": ("INFONCE_TEMPERATURE", 0.1), "listwise": ("LISTWISE_RERANKER_TEMPERATURE", 1.0)}
_UNREAD = (
    *("INFONCE_HARD_NEGATIVES", "INFONCE_MASK_FAKE_NEGATIVE", "INFONCE_INCLUDE_QQ", "INFONCE_INCLUDE_DD"),
    *("LISTWISE_RERANKER_MIN_GROUP_SIZE", "MAX_POSITIVE_SAMPLES", "MAX_NEGATIVE_SAMPLES"),
)
OF_LOSSES = frozenset((*(name for name, _ in _TEMPERATURES.values()), *_UNREAD, "INFONCE_USE_BATCH"))
#: Prompts of templates that write around texts what their tokenizers do: asked of ms-swift (tests/peers)
_AS_TOKENIZED = {"embedding": ["{{QUERY}}"], "reranker": ["{{QUERY}}[SEP]"]}
_DRAWN = "ms-swift draws one document that answers and up to 7 others of a row in each step; here it has all"


def retrieval(reader: KeyReader) -> None:
    """Decide task, loss and template of ``task_type: embedding`` and ``reranker``."""
    task, word = reader.text("task_type"), reader.text("loss_type")
    loss = _LOSSES[task].get(word, "")
    key = f"training.{task}"
    reader.keep("task_type", "training.algorithm", task)
    if not loss:
        known = ", ".join(_LOSSES[task])
        reader.lose("loss_type", f"{word or 'without one ms-swift does not start'}: {known} are supported")
        return
    reader.set(f"{key}.loss_type", loss, "loss_type")
    steps = reader.result.settings.get("training.gradient_accumulation_steps")
    several = (steps.value if steps else reader.value("gradient_accumulation_steps")) != 1
    if task == "reranker":
        reader.differs("loss_type", f"{key}.loss_type", loss, _DRAWN)
    elif loss == "infonce" and several and _variable(reader, "INFONCE_USE_BATCH", "true") == "true":
        says = "ms-swift compares a query with the documents of its micro-batch, here with those of the step"
        reader.differs("loss_type", f"{key}.loss_type", loss, says)
    else:
        reader.keep("loss_type", f"{key}.loss_type", loss)
    if loss in _TEMPERATURES:
        name, default = _TEMPERATURES[loss]
        reader.set(f"{key}.temperature", float(_variable(reader, name, str(default))), "loss_type", name)
    if _variable(reader, "INFONCE_USE_BATCH", "true") not in ("true", "1") and task == "embedding":
        reader.set(f"{key}.in_batch_negatives", False, "loss_type", "INFONCE_USE_BATCH")
    for name in _UNREAD:
        if reader.is_given(f"ENV.{name}"):
            reader.lose(f"ENV.{name}", "what this variable changes in ms-swift's loss is not supported")
    _template(reader, task)


def _variable(reader: KeyReader, name: str, default: str) -> str:
    key = f"ENV.{name}"
    reader.mapped(key, (f"training.{reader.text('task_type')}",))
    return reader.text(key) or default


def _template(reader: KeyReader, task: str) -> None:
    written, kind = reader.given.get("template"), str(reader.given.get("model_type") or "")
    model = str(reader.given.get("model") or "")
    names = [str(written)] if written else template_names(model, kind, config_of(reader))
    formats = formats_of(names[0]) if len(names) == 1 else {}
    as_tokenized = bool(formats.get("auto_add_bos")) and formats.get("prompt") == _AS_TOKENIZED[task]
    if as_tokenized or (task == "embedding" and formats.get("own") == "Qwen3EmbTemplate"):
        reader.nothing("template", "it writes around a text what the model's tokenizer does")
        return
    which = f" ({names[0]})" if len(names) == 1 else ""
    says = f"ms-swift writes its chat template{which} around each text; here the tokenizer's own ends alone"
    reader.departs("template", says, unset=True)


def classified(reader: KeyReader) -> None:
    """``task_type: seq_cls``: ms-swift writes the chat template around texts and turns, or around none."""
    if reader.text("use_chat_template") == "false":
        says = "texts are read as they are, as there; turns are written by the chat template here"
        reader.departs("use_chat_template", says)
    else:
        says = "ms-swift writes its chat template around texts, too; here around turns alone"
        reader.departs("use_chat_template", says, unset=True)


def split_rows(reader: KeyReader) -> None:
    """``sequence_parallel_size`` where a loss needs whole texts: its ranks take rows of their own instead,
    as many in a step as ms-swift's.
    """
    key, size = "sequence_parallel_size", reader.value("sequence_parallel_size")
    for path in ("training.per_device_train_batch_size", "training.gradient_accumulation_steps"):
        setting = reader.result.settings.get(path)
        rows = setting.value if setting else reader.value(path.rpartition(".")[2])
        if isinstance(size, int) and isinstance(rows, int) and rows % size == 0:
            note = f"a step has as many rows: the {size} ranks that share a text in ms-swift take one each"
            reader.set(path, rows // size, key, note)
            reader.mapped((key, path.rpartition(".")[2]), (path,), note)
            return
    reader.lose(key, f"{reader.text('task_type')} scores whole texts, and a step's rows do not divide")
