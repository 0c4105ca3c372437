"""Checks of the named models, data, tokenizer and checkpoint before anything heavy is imported.

Reads names, sizes, headers and the first rows; downloads and tokenises nothing. Imports no torch, no
Transformers.

What the first pictures of a job's rows cost: their sizes, and the tokens by which they lengthen rows.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from paceline.algorithms import codes as algorithm_codes
from paceline.algorithms.rewards.builtin import OF_THE_ANSWER
from paceline.algorithms.rewards.scoring import ENDING, JUDGE, MODEL, REWARDS, RewardSpec, check_built_in
from paceline.config.layers.build import is_reliable
from paceline.config.schema import Config
from paceline.config.sections.algorithms.supervised import ClassificationOptions
from paceline.config.sections.model import ModelSection
from paceline.config.sections.rollout import RolloutOptions
from paceline.core.diagnostics import Diagnostic
from paceline.core.errors import DataError, PacelineError
from paceline.data.chat_template.template_texts import rendered
from paceline.data.images.decide import sees_pictures, settings_of
from paceline.data.preflight.chat_template import Described, describe, other_template, unopened_answers
from paceline.data.preflight.check_sets import (
    first_examples,
    look_at_sets,
    look_at_tokenizer,
    missing_sets,
)
from paceline.data.rows.examples import Reading
from paceline.data.rows.kinds.base import row_kind
from paceline.data.tokenizer.load import tokenizer_here
from paceline.evaluation.scores.metrics import check_metrics
from paceline.plan.algorithms.spec import algorithm_spec, models_named
from paceline.plan.images.layouts import image_layout
from paceline.plan.model.files.folder_check import (
    check_adapter_base,
    check_adapter_folder,
    check_model_folder,
    check_pooling,
    classes_of_head,
)
from paceline.plan.model.files.safetensors_headers import adapter_sizes
from paceline.plan.plan import Plan
from paceline.training import codes
from paceline.training.preflight.class_counts import (
    check_differences,
    class_numbers,
    empty_classes,
    with_head,
)
from paceline.training.preflight.generation_servers import Needs, check_judge, check_servers
from paceline.training.preflight.named_models import check_reward_folder
from paceline.training.preflight.row_counts import enough_rows
from paceline.training.preflight.weight_ways import SentPolicy

if TYPE_CHECKING:
    from paceline.config.schema import Config


def describe_pictures(config: Config, reading: Reading) -> tuple[str, str] | None:
    """Return what the plan says of the pictures in the first training rows: their tokens, and their sizes.

    None without pictures. Raises PacelineError for data and models that other checks name, too.
    """
    examples = first_examples(config.data, reading, "data.train").examples
    images = [(image, len(example.images) == 1) for example in examples for image in example.images]
    if not images:
        return None
    settings = settings_of(config.data, config.model)
    layouts = [image_layout(settings, image.width, image.height, alone=alone) for image, alone in images]
    tokens = sorted(layout.length for layout in layouts)
    widths, heights = (sorted(getattr(image, side) for image, _ in images) for side in ("width", "height"))
    seen = sum(bool(example.images) for example in examples)
    return (
        f"{_span(tokens)} tokens each",
        f"{len(images)} of {_span(widths)} × {_span(heights)} pixels in {seen} of {len(examples)} first rows;"
        f" on average {sum(tokens) / len(tokens):.0f} tokens",
    )


def _span(numbers: list[int]) -> str:
    low, high = numbers[0], numbers[-1]
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


@dataclass(frozen=True)
class InputFindings:
    """``found``: all diagnostics, each once; ``formats``: the row formats of the files that were read;
    ``template``: what the plan says of the chat template, if its text is here; ``pictures``: of the first
    rows' pictures.
    """

    found: list[Diagnostic]
    formats: frozenset[str]
    template: Described | None = None
    pictures: tuple[str, str] | None = None


def check_inputs(config: Config, environ: Mapping[str, str], plan: Plan | None = None) -> InputFindings:
    """Run all checks. With ``plan`` a resumed run's global batch is compared too."""
    spec = algorithm_spec(config.training.algorithm)
    formats, of_data = look_at_sets(config.data, reading_of(config), model=config.model)
    parts: list[Callable[[], Iterable[Diagnostic]]] = [
        lambda: _models(config, plan),
        lambda: [*of_data, *look_at_tokenizer(config.model, formats, reading_of(config).kind)],
        lambda: () if spec.scalar_head else unopened_answers(config.model, formats),
        lambda: _labels(config),
        lambda: enough_rows(config, plan, reading_of(config)),
        lambda: _own_answers(config),
        lambda: _eval_generate(config),
        lambda: _rollout(config, environ, plan),
        lambda: _templates(config, formats),
        lambda: _checkpoint(config, environ, plan),
    ]
    pictures = None
    if plan is not None and plan.vision:
        with suppress(PacelineError, ValueError):  # ``look_at_sets`` has said so
            pictures = describe_pictures(config, reading_of(config))
    return InputFindings(_each_once(parts), formats, describe(config.model, formats), pictures)


def check_named_files(config: Config, doubt: frozenset[str]) -> list[Diagnostic]:
    """Check a config that could not be loaded.

    The diagnostics hold whatever the keys in ``doubt`` (``layers/unreliable_keys.py``) were meant to be.
    """
    return _each_once([lambda: _there(config, doubt)])


def _each_once(parts: Sequence[Callable[[], Iterable[Diagnostic]]]) -> list[Diagnostic]:
    findings: list[Diagnostic] = []
    for part in parts:
        try:
            findings += part()
        except PacelineError as error:
            findings += error.diagnostics
    return list({(d.code, d.where, d.found): d for d in findings}.values())


def _there(config: Config, doubt: frozenset[str]) -> Iterator[Diagnostic]:
    """Check that files named by valid keys exist.

    Their contents depend on other keys (the algorithm, the column names).
    """
    m = config.model
    if is_reliable(doubt, "model.name_or_path", "model.config") and m.config is None and m.name_or_path:
        yield from check_model_folder(m.name_or_path, "model.name_or_path")
    if is_reliable(doubt, "model.tokenizer") and m.tokenizer:
        yield from look_at_tokenizer(m, frozenset())
    for key in ("data.train", "data.eval"):
        if is_reliable(doubt, key):
            yield from missing_sets(config.data, key)
    if (
        is_reliable(doubt, "lora.adapter_name_or_path")
        and config.lora is not None
        and config.lora.adapter_name_or_path
    ):
        yield from check_adapter_folder(config.lora.adapter_name_or_path, "lora.adapter_name_or_path")


def _models(config: Config, plan: Plan | None) -> Iterator[Diagnostic]:
    """Check the folders of the trained model, of the algorithm's other models, and of the adapter to start
    from.
    """
    m = config.model
    keys = {} if m.config is not None or not m.name_or_path else {m.name_or_path: "model.name_or_path"}
    for name, key in models_named(config.training).items():
        keys.setdefault(name, key)
    for name, key in keys.items():
        yield from check_model_folder(name, key)
    if algorithm_spec(config.training.algorithm).loaded_by == "SentenceTransformer":
        yield from check_pooling(config)
    if config.lora is not None and config.lora.adapter_name_or_path:
        folder = config.lora.adapter_name_or_path
        yield from check_adapter_folder(folder, "lora.adapter_name_or_path")
        if m.name_or_path and m.config is None:
            yield from check_adapter_base(folder, m.name_or_path)
        if plan is not None and plan.adapter is not None and plan.shape is not None:
            yield from adapter_sizes(Path(folder).expanduser(), plan.adapter, plan.shape)


def _labels(config: Config) -> Iterator[Diagnostic]:
    """Check the labels of the first rows, also of the evaluation data, for classes that the config does not
    describe. Check that the training data have more than one label.
    """
    spec, reading = algorithm_spec(config.training.algorithm), reading_of(config)
    if not reading.kind.classes and not reading.kind.columns:
        return
    try:
        keys = () if reading.kind.classes else ("data.train",)
        first = first_examples(config.data, reading, *keys)
    except DataError:
        return  # reported with the data sets
    if reading.kind.classes:
        options = ClassificationOptions.model_validate(spec.options_of(config.training))
        facts = [json.loads(example.facts) for example in first.examples]
        rows = [fact["labels"] for fact in facts]
        where, head = f"{spec.key}.labels", classes_of_head(config.model)
        options = with_head(rows, options, head, where)
        class_numbers(rows, options, where, all_rows=first.whole)
        named = options.labels or options.num_labels or head
        if first.whole and (not named or any(fact["several"] for fact in facts)):
            check_differences(rows, where)
        yield from empty_classes(rows, options, where, all_rows=first.whole)
        return
    columns = {name: [e.values.get(name, 0.0) for e in first.examples] for name in reading.kind.columns}
    yield from spec.check_documents(config.training, columns, [e.text for e in first.examples])
    if first.whole:
        yield from reading.kind.unlearnable(columns, "data.train")


def _own_answers(config: Config) -> Iterator[Diagnostic]:
    """Check that some row has a prompt, if the model answers rows of data itself."""
    spec = algorithm_spec(config.training.algorithm)
    if spec.on_policy or not spec.own_fraction(config.training):
        return
    for reason in _without_prompts(config, "data.train"):
        yield codes.TRAINING_NO_PROMPTS(
            f"{spec.key}.{spec.own_answers}", reason, own_answers=spec.own_answers
        )


def _eval_generate(config: Config) -> Iterator[Diagnostic]:
    """Check that some row can be answered at evaluations, and the packages of the metrics."""
    t = config.training
    if not t.eval_generate:
        return
    check_metrics([name for name in t.eval_metrics if ":" not in name], 1, "training.eval_metrics")
    if not reading_of(config).kind.answered:
        for reason in _without_prompts(config, "data.eval" if config.data.eval else "data.train"):
            yield codes.TRAINING_EVAL_GENERATE("training.eval_generate", reason)


def _without_prompts(config: Config, key: str) -> Iterator[str]:
    """Yield why no row of a data set has a prompt: every token carries loss, or every set is plain text."""
    reading = reading_of(config)
    if reading.kind.trained_tokens(reading.train_on) == "all":
        yield f"data.train_on: {config.data.train_on}"
        return
    with suppress(DataError):  # reported with the data sets
        first = first_examples(config.data, reading, key)
        if (
            first.everywhere
            and first.examples
            and not any(example.messages or example.begin for example in first.examples)
        ):
            yield "rows of plain text"


def _rollout(config: Config, environ: Mapping[str, str], plan: Plan | None) -> Iterator[Diagnostic]:
    """Check built-in rewards and their options, the reward model's output, and the servers."""
    t = config.training
    if t.rollout is None or not algorithm_spec(t.algorithm).on_policy:
        return
    for reward in t.rollout.rewards:
        if reward.name == MODEL or ":" in reward.name:  # the trial imports the user's own functions
            continue
        try:
            check_built_in(RewardSpec(reward.name, reward.weight, dict(reward.options)))
        except PacelineError as error:
            yield from (replace(finding, where="training.rollout.rewards") for finding in error.diagnostics)
    yield from _expected_answers(config, t.rollout)
    judge = algorithm_spec(t.algorithm).model_named(config.training, "reward")
    if judge is not None and (Path(judge) / "config.json").is_file():
        yield from check_reward_folder(Path(judge))
    shape = None if plan is None else plan.shape
    vocab = None if shape is None or shape.resized else shape.vocab
    needs = Needs(config.data.max_length, vocab, tokenizer_here(config.model))
    policy = SentPolicy(plan.adapter, plan.device) if plan is not None else None
    yield from check_servers(t.rollout, needs, environ, policy)
    for url in dict.fromkeys(str(r.options.get("url")) for r in t.rollout.rewards if r.name == JUDGE):
        yield from check_judge(url)


def _templates(config: Config, formats: Set[str]) -> Iterator[Diagnostic]:
    """Warn of each further model whose own chat template differs from the run's, which its inputs use."""
    if formats and not rendered(formats):
        return
    for name, key in models_named(config.training).items():
        section = ModelSection(name_or_path=name, chat_template_kwargs=config.model.chat_template_kwargs)
        if name != config.model.name_or_path and other_template(config.model, section):
            file = Path(name).expanduser() / "chat_template.jinja"
            template = str(file) if file.is_file() else f"(the text of {name}'s chat_template)"
            if key.startswith("training.rollout"):
                yield codes.REWARDS_TEMPLATE(key, name, template=template)
            else:
                yield codes.ALGORITHM_TEACHER_TEMPLATE(
                    key, name, key=key.rpartition(".")[2], template=template
                )


def _expected_answers(config: Config, rollout: RolloutOptions) -> Iterator[Diagnostic]:
    """Check that the first rows have the answer that a reward compares with. Some rows suffice where a
    failing reward does not end the run.
    """
    built_in = [reward.name for reward in rollout.rewards if reward.name != MODEL and ":" not in reward.name]
    names = [
        name
        for name in built_in
        if name in REWARDS.names() and (name == "math_verify" or REWARDS.load(name) in OF_THE_ANSWER)
    ]
    if not names:
        return
    try:
        examples = first_examples(config.data, reading_of(config), "data.train").examples
    except DataError:
        return  # reported with the data sets
    rows = [json.loads(example.facts) for example in examples]
    missing = [row for row in rows if "answer" not in row]
    if missing and (len(missing) == len(rows) or rollout.on_reward_error == "error"):
        counts = f"{len(missing)} of the first {len(rows)} rows; columns {', '.join(missing[0])}"
        yield algorithm_codes.REWARDS_NO_ANSWER("training.rollout.rewards", counts[:300], names=names[0])
    ending = ENDING if rollout.on_reward_error == "error" else {}
    named = [(f"data.train example {n}", row) for n, row in enumerate(rows, 1)]
    for check in (check for name in names if (check := ending.get(name)) is not None):
        if wrong := check.unusable(named):
            yield check.finding("training.rollout.rewards", "; ".join(wrong)[:300])


def reading_of(config: Config) -> Reading:
    """Return how the algorithm reads rows."""
    kind = row_kind(algorithm_spec(config.training.algorithm).rows)
    images = sees_pictures(config.data, config.model, kind, imports=False)
    return Reading.of(config.data, kind, images=images)


def _checkpoint(config: Config, environ: Mapping[str, str], plan: Plan | None) -> Iterable[Diagnostic]:
    if not config.training.resume_from_checkpoint:
        return ()
    from paceline.training.preflight.resume_checkpoint import look_at_checkpoint

    return look_at_checkpoint(config, environ, plan)
