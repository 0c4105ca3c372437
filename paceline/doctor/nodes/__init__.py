"""Check the nodes of a job together, before it runs. No torch."""
