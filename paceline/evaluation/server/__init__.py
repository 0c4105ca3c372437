"""The OpenAI-compatible server: requests are taken and answered as vLLM 0.32's takes and answers them."""
