"""The handlers of the API of versions, one file a noun. `HANDLERS` of each: (method, path) → handler."""
