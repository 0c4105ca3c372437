"""What a model is, from its files alone: shapes, counts, families, weights. No torch."""
