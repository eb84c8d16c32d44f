"""The terminal: tables, progress, messages, hints, exit codes."""
