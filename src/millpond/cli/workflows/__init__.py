"""Commands on workflows: runs, and workers of tasks. They speak to a server over gRPC."""
