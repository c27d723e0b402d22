"""The HTTP server: an OpenAI-compatible application over an AsyncLLM."""
