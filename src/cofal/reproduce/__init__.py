"""The paper, made again: a TOML a table or figure, the runner of their cells, the claims checked on the records."""
