"""From what people have to canonical rows: files, frames and XML in; record batches and rejects out."""
