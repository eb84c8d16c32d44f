"""Workflows over gRPC: the API of the client `littlehorse-client`, unmodified."""
