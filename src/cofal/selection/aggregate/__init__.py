"""Selection from aggregates: no embedding and no per-sample list leaves a client."""
