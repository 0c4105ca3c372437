"""Mixtures of experts: routers, their load, their balance."""
