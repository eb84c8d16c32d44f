"""Events of runs: external ones, and those that find their run by a correlation key."""
