"""What tests of rlt and of its plugins share. Importing this imports neither torch nor pytest."""

from rlt_core.testing.checks.pytest_entry import conformance

__all__ = ["conformance"]
