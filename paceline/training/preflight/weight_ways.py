"""The ways of weights to generation servers, and what each needs of the run and of a server. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from paceline.core.diagnostics import Diagnostic
from paceline.core.json_types import JsonObject, value_at
from paceline.generation.vllm_plugin import BACKEND as GLOO
from paceline.plan.hardware.device_kinds import kind_of
from paceline.plan.plan import AdapterSpec
from paceline.training import codes

NCCL = "nccl"
BEST_FIRST = ("adapter", "transfer", "folder")
WORDS = {
    "adapter": "the adapter alone, from a folder",
    "transfer": "the whole model, merged, straight into memory",
    "folder": "the whole model, merged, from a folder",
}


@dataclass(frozen=True)
class Obstacle:
    """Why a way is not open, and what would open it."""

    why: str
    remedy: str


@dataclass(frozen=True)
class SentPolicy:
    """What of a run decides the way: its adapter, and the kind of device that it trains on."""

    adapter: AdapterSpec | None
    device: str

    def obstacle(self, way: str, server: JsonObject) -> Obstacle | None:
        """Return why ``way`` is not open to a server, by what it says of itself (``/server_info``)."""
        if way == "adapter":
            return self._no_adapter() or self._no_loading(server)
        if self.adapter is not None and self.adapter.quantization is not None:
            return Obstacle("the frozen weights are in 4 bits here", "weights: adapter")
        return self._no_transfer(server) if way == "transfer" else None

    def _no_transfer(self, server: JsonObject) -> Obstacle | None:
        """Return why the server takes no weights into memory."""
        own = NCCL if kind_of(self.device).backend == NCCL else GLOO
        remedy = f'--weight-transfer-config \'{{"backend": "{own}"}}\''
        backend = value_at(server, _BACKEND)
        if backend in (GLOO, own):
            return None
        words = f"its weight transfer is {backend}" if backend else "it was started without weight transfer"
        return Obstacle(words + _PICKLED if backend == "ipc" else words, remedy)

    def _no_adapter(self) -> Obstacle | None:
        """Return what of this adapter vLLM does not load."""
        adapter = self.adapter
        if adapter is None:
            return Obstacle("the run trains no adapter", "leave weights out")
        features = {
            "use_dora": adapter.use_dora,
            "oft_block_size": adapter.oft_block_size,
            f"modules_to_save: {', '.join(adapter.modules_to_save)}": adapter.modules_to_save,
            f"bias: {adapter.bias}": adapter.bias != "none",
            f"init_lora_weights: {adapter.init_lora_weights}": adapter.init_lora_weights,
            "target_parameters (fused experts)": adapter.target_parameters,
        }
        words = [text for text, there in features.items() if there]
        return Obstacle(f"vLLM loads no adapter with {'; '.join(words)}", _OTHER) if words else None

    def _no_loading(self, server: JsonObject) -> Obstacle | None:
        """Return why the server loads no adapter of this rank."""
        assert self.adapter is not None
        rank = max([self.adapter.r, *self.adapter.rank_pattern.values()])
        largest = value_at(server, "vllm_config.lora_config.max_lora_rank")
        if not isinstance(largest, int):
            return Obstacle("the server was started without LoRA", f"--enable-lora --max-lora-rank {rank}")
        if largest < rank:
            return Obstacle(
                f"its max_lora_rank is {largest}, the adapter's {rank}", f"--max-lora-rank {rank}"
            )
        if not value_at(server, "vllm_env.VLLM_ALLOW_RUNTIME_LORA_UPDATING"):
            return Obstacle("it loads no adapters while it runs", "VLLM_ALLOW_RUNTIME_LORA_UPDATING=True")
        return None


_PICKLED = ", which takes pickles by HTTP: Paceline sends none"
_BACKEND = "vllm_config.weight_transfer_config.backend"
_OTHER = "training.rollout.weights: folder"


@dataclass(frozen=True)
class Way:
    """The way, and why not a better one."""

    name: str
    why: str
    backend: str = ""  # of a transfer

    @property
    def parts(self) -> list[str]:
        """Its fields, for other ranks."""
        return [self.name, self.why, self.backend]

    def note(self, where: str) -> Diagnostic:
        """Return the finding that says which way it is."""
        return codes.ROLLOUT_WEIGHTS_WAY(where, self.why, way=f"{self.name}: {WORDS[self.name]}")


def best_way(wanted: str, policy: SentPolicy, servers: Mapping[str, JsonObject]) -> Way | list[Diagnostic]:
    """Return the best way that every server takes. Otherwise say why the ``wanted`` way, or each, fails.

    ``servers``: URL → what the server answered.
    """
    reasons: list[str] = []
    findings: list[Diagnostic] = []
    ways = BEST_FIRST if policy.adapter is not None else BEST_FIRST[1:]
    for way in ways if wanted == "auto" else (wanted,):
        against = {url: o for url, info in servers.items() if (o := policy.obstacle(way, info)) is not None}
        if not against:
            backend = value_at(next(iter(servers.values()), {}), _BACKEND)
            return Way(way, "; ".join(reasons) or f"weights: {wanted}", str(backend or ""))
        url, obstacle = next(iter(against.items()))
        reasons.append(f"no {way}: {obstacle.why} ({obstacle.remedy})")
        findings = [
            codes.ROLLOUT_SERVER_UNFIT(
                "training.rollout.weights", f"weights: {way}, {url}", why=o.why, remedy=_how(o.remedy)
            )
            for url, o in against.items()
        ]
    return findings


def _how(remedy: str) -> str:
    """Return what to do, where the remedy is an argument or a variable of the server's."""
    return f"start it with {remedy}" if remedy.startswith(("--", "VLLM_")) else f"set {remedy}"
