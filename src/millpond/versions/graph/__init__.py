"""The graph of commits: records, tags, names, expressions of refs, history. It knows nothing of what commits hold."""
