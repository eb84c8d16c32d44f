"""Machine code over columns: numba kernels on Arrow buffers and NumPy arrays. Knows no part."""
