"""A newer flash kernel takes the place of torch's own once, where its package lets itself be imported;
stubs."""

from __future__ import annotations

from collections.abc import Iterator
from unittest import mock

import pytest
from torch.nn.attention import _registry

from paceline.models.attention.kernel_choice import AttentionKernels, activate_flash, active_flash
from paceline.plan.model.kernels import PADDED_SDPA, VARLEN_FLASH


class Handle:
    def remove(self) -> None: ...


@pytest.fixture
def registered() -> Iterator[mock.Mock]:
    """What torch calls for FA3."""
    stub = mock.Mock(return_value=Handle())
    with mock.patch.dict(_registry._FLASH_ATTENTION_IMPLS, {"FA3": stub}):
        yield stub
        _registry.restore_flash_attention_impl(_raise_warn=False)


def test_it_is_activated_once_and_named_where_it_ran(registered: mock.Mock) -> None:
    said = activate_flash("FA3")
    assert "FlashAttention-3" in said and active_flash() == "FA3"
    registered.assert_called_once_with()
    kernels = AttentionKernels()
    kernels.ran = {VARLEN_FLASH, PADDED_SDPA}
    assert kernels.describe() == "; kernels called: padded_sdpa, varlen_flash (FA3)"


@pytest.mark.parametrize(
    "error", [ImportError("no module"), RuntimeError("no ops"), OSError("another torch")]
)
def test_a_package_that_cannot_be_imported_leaves_torchs_own(registered: mock.Mock, error: Exception) -> None:
    registered.side_effect = error
    said = activate_flash("FA3")
    assert str(error) in said and "torch's own" in said
    assert active_flash() == ""


def test_nothing_is_asked_where_the_plan_names_none(registered: mock.Mock) -> None:
    assert activate_flash("") == "" and not registered.called and active_flash() == ""
