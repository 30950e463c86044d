"""Training scripts in more styles, recorded to judge and for nothing else."""
