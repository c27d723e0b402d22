"""Huginn-0125 for rlt. It installs and declares nothing yet."""
