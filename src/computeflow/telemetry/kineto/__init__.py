"""PyTorch profiler traces (Kineto JSON): `read_trace` makes columns of one rank's file."""
