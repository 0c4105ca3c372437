"""DeepSpeed's JSON as the lowest layer: batch size, precision, optimizer, schedule. ``"auto"`` means not set.

Learning rate, batch, accumulation, clipping, precision, optimizer and schedule belong to ``training.*``. A
higher layer that sets one of them wins, and a note shows the JSON's value.
"""

from __future__ import annotations

from collections.abc import Mapping

from paceline.config import codes
from paceline.config.backend_files.deepspeed.key_verdicts import EntryWriter, is_on
from paceline.config.backend_files.deepspeed.normalize import Normaliser
from paceline.config.backend_files.deepspeed.training_keys import OptimizerReader, read_scheduler
from paceline.config.backend_files.layer import Document, Foreign
from paceline.core.json_types import Json, as_object

MICRO, STEPS, TOTAL = "train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "train_batch_size"


def batch_of(deepspeed: Json, micro: int, steps: int, data_parallel_size: int) -> tuple[int, int, str | None]:
    """Return (micro-batch, accumulation, message) for a number of data-parallel ranks, by DeepSpeed's rule.

    ``deepspeed`` is ``training.deepspeed`` (ignored unless a mapping); ``micro`` and ``steps`` are the
    effective values of ``training``. Where the JSON gives ``train_batch_size`` as a number and lacks one or
    both of the other batch keys, they follow from it (rounded down, at least 1). Anything else is used as
    given.
    """
    if not isinstance(deepspeed, dict):
        return micro, steps, None
    total, absent = deepspeed.get(TOTAL), [key for key in (MICRO, STEPS) if key not in deepspeed]
    if not isinstance(total, int) or not absent:
        return micro, steps, None
    rows = total // data_parallel_size
    if MICRO in absent:
        steps = steps if STEPS not in absent else 1
        micro = max(rows // steps, 1)
    else:
        steps = max(rows // micro, 1)
    product = micro * steps * data_parallel_size
    says = (
        f"the DeepSpeed file's {total} rows per step over {data_parallel_size} ranks: micro-batch"
        f" {micro}, accumulation {steps}"
    )
    return (
        micro,
        steps,
        says if product == total else f"{says}; {total} does not divide evenly, so {product} rows are used",
    )


_BATCH = {MICRO: "training.per_device_train_batch_size", STEPS: "training.gradient_accumulation_steps"}
_PRECISIONS = {"bfloat16": "bf16", "bf16": "bf16", "float16": "fp16", "fp16": "fp16", "half": "fp16"}


def read(document: Document, layer: Foreign, upper: Mapping[str, Json] | None = None) -> None:
    """Add this document's settings to the lowest layer and its normal form to ``layer.contents``.

    Errors and settings that are not used are reported in ``layer``. ``upper``: the values of higher layers by
    path; keys that they override are not refused.
    """
    upper = upper or {}
    normal = Normaliser(document, layer, upper.get("training.distributed_strategy")).run()
    layer.contents["training.deepspeed"] = normal
    reader = _Reader(document, layer, normal, upper)
    reader.set_entry("training.distributed_strategy", "deepspeed", next(iter(document.data), ""))
    reader.run()


class _Reader(EntryWriter):
    """Creates the entries of one document."""

    def run(self) -> None:
        """Add all entries and notes."""
        self._batch()
        self.set_entry("training.max_grad_norm", self.normal.get("gradient_clipping"), "gradient_clipping")
        self._precision()
        rate = read_scheduler(self)
        if block := self.typed("optimizer"):
            OptimizerReader(self, *block, rate).run()
        self._moved()

    def _batch(self) -> None:
        normal = self.normal
        for key, to in _BATCH.items():
            if key not in normal and to in self.upper:
                # training.* decides: the JSON must not hold another number
                normal[key] = "auto"
            self.set_entry(to, normal.get(key), key)
        total, micro, steps = (normal.get(key) for key in (TOTAL, MICRO, STEPS))
        if not isinstance(total, int):
            return
        open_keys = [key for key in _BATCH if key not in normal]
        if open_keys:
            # As in DeepSpeed; accumulation is 1 if only the total is given.
            message = (
                f"{' and '.join(open_keys)} follow from train_batch_size {total} and the number of"
                " processes; if it does not divide evenly, the nearest smaller product is used and"
                " the plan notes it (DeepSpeed would refuse to start)"
            )
        elif isinstance(micro, int) and isinstance(steps, int):
            processes = total / (micro * steps)
            fits = (
                f"holds for {int(processes)} process(es)"
                if processes >= 1 and processes == int(processes)
                else "is not a multiple of it for any number of processes"
            )
            message = (
                f"a step has micro-batch {micro} x accumulation {steps} x processes rows;"
                f" train_batch_size {total} {fits}; with another number of processes the product is"
                " used"
            )
        else:
            message = (
                f"train_batch_size {total} is ignored: a step has micro-batch x accumulation x"
                " processes rows, and one or both of these come from training"
            )
        self.note(TOTAL, message, '"auto"')

    def _precision(self) -> None:
        requested: list[Json] = []
        for name in ("fp16", "bf16"):
            block = self.normal.get(name)
            if isinstance(block, dict):
                requested.append(block.get("enabled", False))
                self.set_entry(f"training.{name}", requested[-1], f"{name}.enabled")
            elif block is not None:
                requested.append(block)
        # Both are read in any case: each takes its block out of the JSON
        more = [self._autocast(), self._amp()]
        carried = any(entry.path == "training.mixed_precision" for entry in self.layer.entries)
        if not requested and not carried and not any(on == "auto" or is_on(on) for on in more):
            self.default(
                "training.mixed_precision",
                "no",
                "",
                "no precision block: the run computes in float32, as in DeepSpeed",
                'set "bf16": {"enabled": "auto"}, or mixed_precision: auto',
            )

    def _autocast(self) -> Json:
        """Return torch_autocast.enabled, or None without the block."""
        autocast = self.normal.pop("torch_autocast", None)
        if isinstance(autocast, dict):
            word = _PRECISIONS.get(str(autocast.get("dtype", "bfloat16")).lower().removeprefix("torch."))
            if autocast.get("enabled") is True and word:
                self.set_entry(f"training.{word}", True, "torch_autocast.enabled")
            self.note(
                "torch_autocast",
                "torch_autocast: training.mixed_precision sets mixed precision, the same way under every"
                " strategy",
                f"{word}: true" if word else "",
            )
            return autocast.get("enabled", False)
        return None

    def _amp(self) -> Json:
        """Return the ``enabled`` of Apex's amp block, or None without the block."""
        amp = self.normal.pop("amp", None)
        if not isinstance(amp, dict):
            return None
        stage = as_object(self.normal.get("zero_optimization")).get("stage", 0)
        level = str(amp.get("opt_level", "O1")).upper()
        if not is_on(amp):
            self.note("amp", "amp: switched off")
        elif level == "O0":
            self.note("amp", "amp: level O0 computes in float32", "remove the block")
        elif stage not in (0, "auto") or level not in ("O1", "AUTO"):
            self.problem(
                codes.PREC_AMP_ZERO,
                "Apex amp does not work with ZeRO"
                if stage
                else f"Apex level {level} keeps weights in half precision",
                "amp",
                f"amp.enabled with stage {stage}, {level}",
                'use an "fp16" or "bf16" block instead of "amp"',
            )
        else:
            self.set_entry("training.fp16", True, "amp.enabled")
            self.note(
                "amp",
                "amp: read as fp16: true; Apex O1 corresponds to torch's autocast with a gradient scaler",
                '"fp16": {"enabled": true}',
            )
        return amp.get("enabled", False)

    def _moved(self) -> None:
        """Move keys that belong entirely to training.*."""
        key = "dataloader_drop_last"
        self.set_entry(f"training.{key}", self.normal.pop(key, None), key)
        if self.normal.get("gradient_allreduce_op") == "sum":
            self.problem(
                codes.ZERO_NOT_BUILT,
                "gradient_allreduce_op: gradients are averaged over the tokens of all processes; a sum would"
                " change with the number of processes",
                "gradient_allreduce_op",
                "sum",
                '"mean"',
            )
        if as_object(self.normal.pop("compile", None)):
            self.note(
                "compile",
                "compile: ignored; under DeepSpeed weights are gathered and partitioned inside the"
                " forward, which cannot be compiled. The result is the same",
                "set torch_compile: true with distributed_strategy: ddp",
            )
        self._monitors()

    def _monitors(self) -> None:
        trackers = []
        for name in ("tensorboard", "wandb"):
            block = self.normal.pop(name, None)
            if isinstance(block, dict):
                trackers += [name] * is_on(block)
                verdict = (
                    "read as report_to; its other settings belong in the tracker's own variables"
                    if is_on(block)
                    else "switched off"
                )
                self.note(name, f"{name}: {verdict}")
        self.set_entry("training.report_to", trackers or None, trackers[0] if trackers else "")
        for name in ("csv_monitor", "comet"):
            if is_on(as_object(self.normal.get(name))):
                self.note(
                    name,
                    f"{name}: not written; the run's events contain every step, and"
                    " training.report_to lists the available trackers",
                )
