"""The tuner of the products' tiles: `python -m rlt_kernels.tune --out FILE`."""
