"""The routes of the console: each answers one URL, as a page for people and as JSON for programs."""
