"""One module per training script; each has `main(drill, out)` that runs on every rank."""
