"""Tests of kernels under Triton's interpreter; tests/test_interpreted.py runs them."""
