"""How the records of a table or figure are shown: a file a kind, each with the rows of its table and its picture."""
