"""What writes the generated parts of these pages."""
