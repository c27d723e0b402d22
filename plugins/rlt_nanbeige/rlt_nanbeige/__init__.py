"""Nanbeige4.2 (looped) for rlt. It installs and declares nothing yet."""
