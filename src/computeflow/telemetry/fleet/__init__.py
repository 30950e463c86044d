"""A fleet: accounting joined with the metrics, kernel logs and job logs of the same nodes and period.

Start with `fleet_join.join_fleet`.
"""

from computeflow._lazy import lazy_exports

_EXPORTS = {
    "FleetFacts": "fleet_facts",
    "join_fleet": "fleet_join",
    "why_not_joined": "fleet_join",
}
__all__ = [*_EXPORTS]
__getattr__, __dir__ = lazy_exports(__name__, _EXPORTS)
