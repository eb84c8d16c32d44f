"""Search kernels over frozen columns: find the group, find the time, verify the key, gather the value."""
