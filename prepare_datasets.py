"""Prepares the data ahead of training: ``python prepare_datasets.py --config config.yaml``."""

from paceline.cli.compat import prepare_datasets

if __name__ == "__main__":
    prepare_datasets()
