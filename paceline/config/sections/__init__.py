"""One pydantic model per section of the YAML; every field has a one-line description."""
