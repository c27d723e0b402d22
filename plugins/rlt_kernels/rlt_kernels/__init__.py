"""GPU kernels for rlt. It installs and declares nothing yet."""
