"""What a rank holds and computes, from which memory and time are counted."""
