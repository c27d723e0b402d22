"""A server under load; `make load`."""
