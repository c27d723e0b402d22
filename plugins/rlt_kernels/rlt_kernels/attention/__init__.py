"""Paged attention in Triton: decode rows, prompt tiles, and one chunk rule for both."""
