"""``python -m paceline VERB …``, and what ``torchrun -m paceline train config.yaml`` starts."""

from paceline.cli.main import main

if __name__ == "__main__":
    main()
