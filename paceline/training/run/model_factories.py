"""Model factories for the roles of an algorithm, from a plan."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import torch

from paceline.checkpoint.export.untrained_tensors import carried_state
from paceline.config.schema import Config
from paceline.config.sections.model import ModelSection
from paceline.config.sections.rollout import RolloutOptions
from paceline.core.json_types import JsonObject
from paceline.models.factory import HFModelFactory
from paceline.models.heads.sequence_classification import Classes
from paceline.plan.algorithms.spec import algorithm_spec
from paceline.plan.features.freezing import Freezing
from paceline.plan.plan import AdapterSpec, Plan
from paceline.protocols.roles import Role
from paceline.training.preflight.named_models import check_reward_model, check_tokens, has_tokenizer


class PreparedTokens(Protocol):
    """The values that models need from the prepared data (``Prepared`` has them)."""

    @property
    def vocab_size(self) -> int | None: ...  # rows that the embedding needs; None: not known
    @property
    def tokenizer_path(self) -> Path: ...


@dataclass(frozen=True)
class Models:
    """Makes the factories that strategies build models with."""

    plan: Plan
    config: Config
    prepared: PreparedTokens
    device: torch.device
    classes: Classes | None = None  # only for a classifier
    # names of the parameters of a trained role that a checkpoint brings
    restored: Callable[[Role], Collection[str]] = lambda role: ()

    def trained(self, role: Role) -> HFModelFactory:
        """Return the factory of a trained model.

        Its weights are those named for the role, else the initial weights. An existing adapter to
        continue from belongs to the policy, not to the value model.
        """
        restored = self.restored(role)
        if role is not Role.VALUE:
            return self._factory(role, self.config.model, self.plan.adapter, restored=restored)
        adapter = self.plan.adapter
        # The same kind of adapter, but with its first values.
        fresh = adapter if adapter is None else replace(adapter, start=None)
        return self._factory(role, self._named(role) or self.config.model, fresh, restored=restored)

    def frozen(self, role: Role) -> HFModelFactory:
        """Return the factory of a frozen model: the one named for its role, else the initial model.

        Raises ConfigError if a teacher or a reward model has another tokenizer.
        """
        section = self._named(role)
        if section is None:
            adapter = self.plan.adapter
            if adapter is not None and adapter.init_lora_weights and not adapter.start:
                adapter = None  # the whole is what it began as
            return self._factory(role, self.config.model, adapter, frozen=True)
        spec = algorithm_spec(self.plan.algorithm)
        if role.value in spec.same_tokens and has_tokenizer(str(section.name_or_path)):
            check_tokens(
                str(section.name_or_path),
                self.prepared.tokenizer_path,
                spec.model_key(role.value),
                role.value,
                whole=role.value in spec.lends_head,
            )
        if role is Role.REWARD:
            check_reward_model(str(section.name_or_path), self.prepared.tokenizer_path)
        return self._factory(role, section, None, frozen=True)

    def carried(self, role: Role, before: JsonObject) -> JsonObject:
        """Return the folder's untrained tensors, for exports (``checkpoint.export.untrained_tensors``); empty
        if there are none. Reads all their bytes, unless ``before``, from the resumed checkpoint, covers the
        same tensors.
        """
        model, tensors = self.config.model, self.trained(role).account()
        if tensors is None or not tensors.carried or model.name_or_path is None:
            return {}
        local = Path(model.name_or_path)
        name = str(local.resolve()) if local.is_dir() else model.name_or_path
        same = {"name_or_path": name, "revision": model.revision, "names": sorted(tensors.carried)}
        # ``before`` holds the digests beside these three.
        if before.items() >= same.items():
            return before
        return carried_state(tensors.folder, name, model.revision, tensors.carried)

    def _named(self, role: Role) -> ModelSection | None:
        """Return the ``model:`` section of the role's own model, or None for the initial model."""
        name = algorithm_spec(self.plan.algorithm).model_named(self.config.training, role.value)
        if name is None:
            return None
        pinned = (
            {} if name == self.config.model.name_or_path else {"revision": None, "trust_remote_code": False}
        )
        # a pinned revision belongs to one model
        return self.config.model.model_copy(update={"name_or_path": name, "config": None, **pinned})

    def _factory(
        self,
        role: Role,
        model: ModelSection,
        adapter: AdapterSpec | None,
        *,
        frozen: bool = False,
        restored: Collection[str] = (),
    ) -> HFModelFactory:
        precision, t, spec = self.plan.precision, self.config.training, algorithm_spec(self.plan.algorithm)
        rollout = t.rollout or RolloutOptions()
        compile_options = {"backend": t.torch_compile_backend, "mode": t.torch_compile_mode}
        return HFModelFactory(
            model,
            role,
            vocab_size=self.prepared.vocab_size,
            seed=t.seed,
            compute_dtype=getattr(torch, precision.compute),
            attention=self.plan.attention,
            recompute=self.plan.recompute,
            recompute_keeps=self.plan.recompute_keeps,
            device=self.device,
            compile=self.plan.compile,
            compile_options={name: value for name, value in compile_options.items() if value},
            master_dtype=getattr(torch, precision.master),
            adapter=adapter,
            frozen=frozen,
            freeze_router=t.freeze_router and not frozen,
            freezing=Freezing.of(self.plan),
            vision=self.plan.vision,
            # that of the sampling, which on-policy log-probabilities are compared with; 1 for greedy
            temperature=rollout.temperature or 1.0 if spec.on_policy else 1.0,
            classes=self.classes if role is Role.CLASSIFIER else None,
            fp8=precision.fp8,
            restored=restored,
            dropout=not (spec.disable_dropout if t.disable_dropout is None else t.disable_dropout),
        )
