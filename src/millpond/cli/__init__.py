"""The command line: one file a noun, and nothing heavy imported before a command runs.

| module | holds |
|---|---|
| `main` | the application, the module of each command, and the place where errors become sentences and exit codes |
| `exits` | the table of exit codes |
| `options` | options that several commands share |
| `screen` | tables, progress and JSON |
| `rows` | rows that a command answers: to the screen, as JSON lines, or into a file |
| `ponds`, `maps`, `loads`, `lookups`, `queries`, `enrichments`, `maintenance`, `demo` | the commands |

Results go to standard output; progress, notes and errors to standard error. With `--json` a command prints
one JSON object, and a command that answers rows prints one object a line.
"""
