"""User tasks: nodes that wait for a person, with their assignments, their actions by time and their comments."""
