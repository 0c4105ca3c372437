"""Jobs of schedulers: written from one YAML, submitted, asked and stopped. No torch."""
