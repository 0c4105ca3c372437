"""The guide's launcher: ``python scripts/run_distributed.py --nproc_per_node 4 --config
config_distributed_example.yaml --algorithm sft``.
"""

import sys
from pathlib import Path

# so that it works from a checkout that is not installed
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from paceline.cli.compat import run_distributed  # noqa: E402

if __name__ == "__main__":
    run_distributed()
