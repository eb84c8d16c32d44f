"""Metadata: definitions of tasks and events, and specifications with their versions."""
