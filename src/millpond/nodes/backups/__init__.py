"""Backups: copies of a pond in a bucket or a folder, made while it works, and ponds restored from them."""
