"""A space in a bucket: a log of batches, each put under the next number if that is free, and checkpoints."""
