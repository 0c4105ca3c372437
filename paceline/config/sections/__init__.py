"""One pydantic model per section of the YAML; every field carries its line of documentation."""
