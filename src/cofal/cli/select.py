"""`cofal select`: picks from embedding files, written as a CSV."""
