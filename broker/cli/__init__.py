"""The command line: `partibus serve`, `check`, `repair`, and small helpers."""
