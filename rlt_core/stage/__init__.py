"""The stage: the process that owns device, weights and pool, and its clients."""
