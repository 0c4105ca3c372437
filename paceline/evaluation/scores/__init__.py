"""Losses and metrics of rows and answers, and models that judge."""
