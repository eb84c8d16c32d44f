"""A bucket that misbehaves as real ones do, and processes over it that are killed: the space in a bucket, by seed."""
