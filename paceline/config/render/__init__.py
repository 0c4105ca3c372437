"""Render configs: the page of keys, the JSON schema, effective values, differences."""
