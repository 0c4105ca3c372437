"""What is known of each family of models: one record."""
