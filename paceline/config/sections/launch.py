"""``launch:`` — processes, nodes, and what a cluster's site wants around them."""

from __future__ import annotations

from pydantic import Field

from paceline.config.sections.types import Bool, Int, OptInt, Section, Text


class LaunchSection(Section):
    """Numbers of processes and nodes. Command-line options take precedence."""

    nproc: OptInt = Field(
        default=None,
        ge=1,
        description="Processes on this node; when empty one per accelerator, or 1 on a CPU.",
    )
    nnodes: Int = Field(default=1, ge=1, description="Number of nodes.")
    node_rank: Int = Field(default=0, ge=0, description="Rank of this node.")
    master_addr: Text = Field(default="127.0.0.1", description="Address of node 0.")
    master_port: OptInt = Field(
        default=None, description="Port on node 0; a free one is chosen when empty (one node only)."
    )
    allow_unsigned_store: Bool = Field(
        default=False,
        description="Start on several nodes without a secret (`PACELINE_STORE_SECRET_FILE`); anyone who"
        " can reach the port where the ranks connect can then end the run.",
    )
