"""Effect of a placement on the step: `effect`, from the bytes that cross each tier.

The predictor takes ranks to lie next to each other, and every group to have the network to itself at a
device's NIC speed. Here each group gets the network that this placement leaves it: the NIC's speed,
over how much longer the busiest uplink takes for its bytes than the busiest NIC. The predictor
runs once for each group on such a cluster, and that group's account is taken from the result. The
bubble, the jitter and all other accounts stay as they were, and groups are not taken to meet on an
uplink at the same time. On a torus a group's network is slower by the links that its bytes pass on
average, which neglects that some links carry more than others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from computeflow.cluster import Cluster, LinkTier
from computeflow.cluster.placement import Placement
from computeflow.cluster.wiring import BLOCK, NODE, TORUS, Wiring
from computeflow.planning.placement.crossing import Crossing, Floats, crossing, total
from computeflow.planning.placement.traffic import Flow, traffic
from computeflow.prediction import Parameters, Stack, find_stack, load_parameters
from computeflow.prediction.evidence import outlook_of
from computeflow.prediction.stack import DEFAULT
from computeflow.prediction.step import account_step
from computeflow.prediction.step_inputs import of_job, stack_rows
from computeflow.workload import Job, Layout, Layouts

Neighbours = Literal["idle", "busy"]
"""Other nodes of a leaf: they leave all of its uplinks to the job, or use their own share."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Effect:
    crossings: dict[str, Crossing]
    """Bytes of a step, by account."""
    least_seconds: dict[str, float]
    """Least time in a step by kind of link, at full speed with nothing else to do: `nvlink` of the
    mean device, `nic`, `leaf` and `pod` uplinks the busiest one, `torus` the mean link."""
    slowdowns: dict[str, float]
    """How much slower a group's network is than its NICs, by account."""
    step_seconds: float
    accounts: dict[str, float]
    """Seconds of a step that depend on the placement, by account."""


def effect(
    job: Job,
    cluster: Cluster,
    layout: Layout,
    placement: Placement,
    wiring: Wiring,
    *,
    stack: Stack | None = None,
    parameters: Parameters | None = None,
    neighbours: Neighbours = "idle",
) -> Effect:
    """`cluster` gives the speed of NVLink and of a device's share of the NICs; the wiring, not the
    cluster, says how oversubscribed the network is.
    """
    used = stack or find_stack(DEFAULT)
    sent = traffic(job, cluster, layout, used)
    crossed = crossing(placement, wiring, sent)
    nic = _nic(cluster)
    links = _Links.of(wiring, placement, nic, neighbours)
    slowdowns = {account: links.slowdown(value) for account, value in crossed.items()}

    def slowed(account: str) -> Cluster:
        flows = [flow for flow in sent.flows if flow.account == account]
        unit = _unit(flows, placement, wiring, stays=crossed[account].between_nodes == 0)
        return replace(cluster, tiers=_tiers(cluster, unit, nic / slowdowns[account]))

    clusters = [cluster, *map(slowed, slowdowns)]
    rows = [of_job(job, value, Layouts.of([layout]), used) for value in clusters]
    p = parameters or load_parameters()
    step, maturity = (
        account_step(stack_rows(rows), p),
        outlook_of(job, cluster.accelerator, used).rate,
    )
    matured = account_step(of_job(job, cluster, Layouts.of([layout]), used, maturity), p)
    accounts = {name: float(step.accounts[name][row]) for row, name in enumerate(slowdowns, 1)}
    change = sum(seconds - float(step.accounts[name][0]) for name, seconds in accounts.items())
    nvlink = cluster.tiers[0].bytes_per_second if cluster.tiers else np.inf
    return Effect(
        crossings=crossed,
        least_seconds=links.seconds(total(crossed, wiring), nvlink * len(placement)),
        slowdowns=slowdowns,
        step_seconds=float(matured.seconds[0]) + change / maturity,
        accounts=accounts,
    )


def _nic(cluster: Cluster) -> float:
    """Speed of one device's NIC; infinite where nothing joins it to others."""
    if not cluster.tiers:
        return np.inf
    return cluster.tiers[min(1, len(cluster.tiers) - 1)].bytes_per_second


def _tiers(cluster: Cluster, unit: int, speed: float) -> tuple[LinkTier, ...]:
    """Domains of `unit` devices, joined by a network of this speed."""
    if not cluster.tiers:
        return ()
    inner = replace(cluster.tiers[0], devices=min(unit, cluster.gpus))
    if inner.devices == cluster.gpus:
        return (inner,)
    return (inner, LinkTier(devices=cluster.gpus, bytes_per_second=speed))


def _unit(flows: list[Flow], placement: Placement, wiring: Wiring, *, stays: bool) -> int:
    """Devices in a domain, as a group with this stride sees it: what the predictor calls the tier."""
    if stays:
        return len(placement)
    domain = wiring.domain[placement.node]
    unit = wiring.devices
    for flow in flows:
        groups = np.stack([flow.groups(len(placement)), domain])
        together = len(placement) // np.unique(groups, axis=1).shape[1]
        if together > 1:
            unit = max(unit, together * flow.stride)
    return unit


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Links:
    """Bytes/s that the job has on each link."""

    nic: float
    """Speed of one node on one rail."""
    leaf: Floats
    """Upwards, of every leaf."""
    pod: Floats
    torus: float
    """Speed of all links together."""

    @classmethod
    def of(cls, wiring: Wiring, placement: Placement, nic: float, neighbours: Neighbours) -> _Links:
        used = np.unique(placement.node)
        nodes = used if neighbours == "busy" else np.arange(wiring.nodes)
        rail = nic * wiring.devices / wiring.rails
        ports = np.bincount(wiring.leaf[nodes].reshape(-1), minlength=len(wiring.parent))
        leaf = np.asarray(ports * rail / wiring.leaf_oversubscription, np.float64)
        pod = np.bincount(wiring.parent, leaf) / wiring.pod_oversubscription
        return cls(nic=rail, leaf=leaf, pod=pod, torus=len(used) * wiring.devices * nic)

    def seconds(self, crossed: Crossing, nvlink: float) -> dict[str, float]:
        by_link = {
            "nvlink": float(crossed.tiers[NODE] + crossed.tiers[BLOCK]) / nvlink,
            "nic": float(crossed.nic.max()) / self.nic,
            "leaf": _longest(crossed.leaf, self.leaf),
            "pod": _longest(crossed.pod, self.pod),
            "torus": float(crossed.tiers[TORUS]) / self.torus,
        }
        return {link: seconds for link, seconds in by_link.items() if seconds > 0}

    def slowdown(self, crossed: Crossing) -> float:
        by_link: Mapping[str, float] = self.seconds(crossed, np.inf)
        if "nic" not in by_link:
            return 1.0
        hops = float(crossed.tiers[TORUS] / crossed.nic.sum())
        uplink = max(by_link.get("leaf", 0.0), by_link.get("pod", 0.0)) / by_link["nic"]
        return max(1.0, uplink, hops)


def _longest(sent: Floats, speed: Floats) -> float:
    return float(np.max(sent[sent > 0] / speed[sent > 0], initial=0.0))
