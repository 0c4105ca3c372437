"""What marks a checkpoint that was another program's. No torch."""

CONVERTED = "converted_from"  # in its state: of which program it was, in words
