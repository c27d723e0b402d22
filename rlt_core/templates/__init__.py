"""What `rlt plugin new` writes: a whole plugin package, and the function that copies it."""
