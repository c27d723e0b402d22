"""Training of the demo model: plain torch, independent of the engine, not shipped in the wheel."""
