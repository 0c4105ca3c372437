"""Images of rows: opened and checked once, written as tokens, and made into pixels while training."""
