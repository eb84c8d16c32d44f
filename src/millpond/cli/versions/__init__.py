"""Commands on repositories: branches, commits, merges, and the objects on them."""
