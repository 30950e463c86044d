"""PyTorch profiler traces (Kineto JSON): `reading.read_trace` makes a trace of one rank's file."""
