"""Conditions that simulated runs are tried under, as hypothesis draws them."""

from __future__ import annotations

from hypothesis import strategies as st

CONDITIONS: dict[str, st.SearchStrategy[float]] = {
    "init_seconds": st.floats(10, 2000), "load_seconds": st.floats(0, 2000),
    "swap_seconds": st.floats(0, 2000), "timeout_seconds": st.floats(60, 3600),
    "inspected": st.floats(0, 1), "silent_seconds": st.floats(0, 50000),
    "repaired": st.floats(0, 1), "repair_seconds": st.floats(600, 50000),
    "repair_spread": st.floats(0, 1.5), "stall_seconds": st.floats(0, 100),
    "startup_seconds": st.floats(0, 5000), "throttle": st.floats(0, 0.2),
    "stragglers_per_node_day": st.floats(0, 0.01), "straggler_slowdown": st.floats(0.01, 0.5),
    "notice_seconds": st.floats(60, 100000), "straggler_seconds": st.floats(10000, 1e6),
    "outages_per_year": st.floats(0, 50), "outage_seconds": st.floats(0, 100000),
    "maintenance_every_seconds": st.sampled_from([0.0, 1.3e5, 4.1e5]),
    "maintenance_seconds": st.floats(0, 40000),
}  # fmt: skip
