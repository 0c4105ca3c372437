"""A config shown: its keys as a page and as JSON schema, its effective values, its differences."""
