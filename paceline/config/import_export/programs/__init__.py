"""Translators of the programs whose files are imported: keys, data sets and templates."""
