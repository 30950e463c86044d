"""Serving and chains of calls, coarsely: nothing of it is simulated, and `compare` does not use it."""

from computeflow.comparison.serving.chains import SOURCE, Chain, chains, places, round_trips
from computeflow.comparison.serving.estimates import (
    REACHED,
    USUAL_PRECISION,
    ServingEstimate,
    estimate_serving,
    kv_bytes_per_token,
    roofline,
)

__all__ = [
    "REACHED",
    "SOURCE",
    "USUAL_PRECISION",
    "Chain",
    "ServingEstimate",
    "chains",
    "estimate_serving",
    "kv_bytes_per_token",
    "places",
    "roofline",
    "round_trips",
]
