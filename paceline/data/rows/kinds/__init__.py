"""The kinds of rows: one object per kind, named by an algorithm's spec."""
