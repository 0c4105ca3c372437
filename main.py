"""The guide's entry point: ``torchrun --nproc_per_node=4 main.py --mode train --config config.yaml
--algorithm sft``, or alone for one process.
"""

from paceline.cli.compat import main

if __name__ == "__main__":
    main()
