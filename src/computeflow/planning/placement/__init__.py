"""Which rank runs where. `traffic` says what a step sends, `place` maps its ranks onto an allocation,
`crossing` counts how far the bytes then go, `effect` what that does to the step; `launch` writes it
down for mpirun, Slurm, torchrun, Kubernetes and Ray.
"""

from computeflow.planning.placement.crossing import Crossing, crossing, total
from computeflow.planning.placement.effect import Effect, effect
from computeflow.planning.placement.rank_orders import hostname_order, place, random_order
from computeflow.planning.placement.traffic import Flow, Traffic, traffic

__all__ = [
    "Crossing",
    "Effect",
    "Flow",
    "Traffic",
    "crossing",
    "effect",
    "hostname_order",
    "place",
    "random_order",
    "total",
    "traffic",
]
