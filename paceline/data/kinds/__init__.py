"""What a row of a data set can be: one object a kind, named by an algorithm's spec."""
