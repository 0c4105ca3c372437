"""The OpenAI-compatible server: it accepts requests and answers them as vLLM 0.32's server does."""
