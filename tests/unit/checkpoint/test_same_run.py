"""A checkpoint of another run is refused with a remedy that is not refused again."""

from __future__ import annotations

import pytest

from paceline.checkpoint.load.find_checkpoint import same_run
from paceline.core.errors import CheckpointError


@pytest.mark.parametrize("field", ["data_fingerprint", "seq_len", "packing", "seed", "config_digest"])
def test_a_new_run_is_one_without_the_resume(field: str) -> None:
    """Another output directory alone leads to the same refusal: the checkpoint is still named."""
    with pytest.raises(CheckpointError) as refused:
        same_run({field: "a"}, {field: "b"})
    (finding,) = refused.value.diagnostics
    assert "no resume_from_checkpoint" in str(finding.hint) and "output_dir" not in str(finding.hint)
