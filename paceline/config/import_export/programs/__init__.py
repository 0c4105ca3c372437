"""The programs whose files are imported, a translator each: their keys, and their data sets."""
