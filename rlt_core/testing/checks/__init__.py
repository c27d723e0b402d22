"""The conformance kit: named checks of what a plugin declares (`rlt check`, `conformance`)."""
