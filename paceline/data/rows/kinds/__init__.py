"""The kinds of rows of data sets: one object each, named by an algorithm's spec."""
