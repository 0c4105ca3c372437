"""Variables that ``accelerate launch`` (0.10 to 1.15) sets; see ``keys/launcher_variables.toml``.

``READ``: variable → (path in the YAML of ``accelerate config``, the launcher's default; None: it is set only
if the user gave it). ``SWITCHES``: variable → (the block of READ that it switches on, the distributed_type of
that block). ``SAID``: variable → why it has no effect; reported if its value would have one. ``OTHERS``: read
by torch, NCCL, OpenMP or the rendezvous; passed on unchanged. ``REFUSED``: not supported. ``OLD``: names
before 0.16, without the prefix.
"""

from __future__ import annotations

from paceline.config.yaml_text.read_file import names, read_table, texts
from paceline.core.json_types import as_object

_TABLE = read_table("launcher_variables", "backend_files")
_READ = {name: texts(row) for name, row in as_object(_TABLE["read"]).items()}
READ = {name: (row["path"], row.get("default")) for name, row in _READ.items()}
SWITCHES = {
    name: (str(row["block"]), str(row["kind"]))
    for name, row in ((name, as_object(row)) for name, row in as_object(_TABLE["switches"]).items())
}
SAID, REFUSED = texts(_TABLE["said"]), texts(_TABLE["refused"])
OTHERS, OLD = frozenset(names(_TABLE["others"])), names(_TABLE["old"])
_MARKS = (
    "ACCELERATE_MIXED_PRECISION",
    *SWITCHES,
    *(f"ACCELERATE_{name}" for name in ("USE_CPU", "DYNAMO_BACKEND", "GRADIENT_ACCUMULATION_STEPS")),
)


def with_todays_names(environ: dict[str, str]) -> dict[str, str]:
    """Return the environment with the variables of accelerate before 0.16 under their current names too.

    Only if accelerate has set them, i.e. torchrun's or its own variables are present.
    """
    marks = "TORCHELASTIC_RUN_ID" in environ or "USE_CPU" in environ
    old = "MIXED_PRECISION" in environ and "ACCELERATE_MIXED_PRECISION" not in environ and marks
    half = "ACCELERATE_USE_DEEPSPEED" in environ and "ACCELERATE_DEEPSPEED_ZERO_STAGE" not in environ
    if not (old or (half and "DEEPSPEED_ZERO_STAGE" in environ)):
        return environ
    return {**{f"ACCELERATE_{name}": environ[name] for name in OLD if name in environ}, **environ}


def by_accelerate(environ: dict[str, str]) -> bool:
    """Whether ``accelerate launch`` has set any variable."""
    return any(name in environ for name in _MARKS)
