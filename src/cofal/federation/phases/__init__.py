"""The server's side of the pipeline, a phase a file. A phase talks to its clients through the Fleet only."""
