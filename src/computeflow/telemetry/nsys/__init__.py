"""SQLite exports of Nsight Systems, by the same accounting as Kineto traces. Start with `reading`."""
