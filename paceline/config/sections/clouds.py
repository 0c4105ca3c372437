"""``launch.skypilot:``, ``launch.dstack:`` and ``launch.ray:`` — what only these need."""

from __future__ import annotations

from pydantic import Field

from paceline.config.sections.types import Bool, Float, OptText, Section, Text, Texts


class SkyPilotOptions(Section):
    """A task of SkyPilot."""

    infra: OptText = Field(default=None, description="Where: `aws/us-east-1`, `k8s`; any when empty.")
    use_spot: Bool = Field(default=False, description="Take spot instances, which may go away.")
    setup: Texts = Field(
        default=(), description="Shell commands that prepare a node: `[pip install paceline]`."
    )


class DstackOptions(Section):
    """A task of dstack."""

    backends: Texts = Field(default=(), description="Clouds to choose from; all when empty.")
    spot: Bool = Field(default=False, description="Take spot instances, which may go away.")
    fleets: Texts = Field(default=(), description="Fleets whose instances are used; any when empty.")


class RayOptions(Section):
    """A job on a Ray cluster."""

    address: Text = Field(default="http://127.0.0.1:8265", description="Address of the cluster's dashboard.")
    placement_timeout: Float = Field(
        default=3600.0, gt=0, description="Seconds to wait until the cluster has the nodes free."
    )
