"""The training scripts; each runs as one rank of a case."""
