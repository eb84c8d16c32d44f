"""Tasks on their way to workers: queues and claims."""
