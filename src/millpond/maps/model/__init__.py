"""The definition of a map, its columns, keys and values."""
