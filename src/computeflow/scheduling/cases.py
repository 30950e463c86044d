"""`Case`: one trouble of one job, with the figures that all of its options share."""

from __future__ import annotations

from dataclasses import dataclass

from computeflow.economics.money import usd_of
from computeflow.scheduling.job_state import JobState
from computeflow.scheduling.move_policy import MovePolicy
from computeflow.scheduling.options import ActionKind, MovePrice, PricedOption
from computeflow.scheduling.pricing import expected_cost, slow_cost
from computeflow.scheduling.troubles import Trouble
from computeflow.units import DAY_SECONDS

LEMON_FACTOR = 150.0
"""How much more often a node with degraded hardware fails: Meta's lemons were 40 of about 3,000 nodes,
and without them 4 instead of 14 % of large jobs failed (arXiv:2410.21680): 10/14 of the failures on
1.6 % of the nodes at most, against 4/14 on the rest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gains:
    """What an option spares the job: expected, if the cause would have lasted, and the ends."""

    expected: float
    lasting: float
    low: float
    high: float

    def part(self, share: float) -> Gains:
        return Gains(
            expected=share * self.expected,
            lasting=share * self.lasting,
            low=share * self.low,
            high=share * self.high,
        )

    def plus(self, seconds: float) -> Gains:
        return Gains(
            expected=self.expected + seconds,
            lasting=self.lasting + seconds,
            low=self.low + seconds,
            high=self.high + seconds,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    state: JobState
    trouble: Trouble
    policy: MovePolicy
    trust: float
    """Share of a gain that is believed: what earlier moves gained, and the finding's confidence."""
    nodes_out: tuple[str, ...]

    @property
    def slow_left(self) -> float:
        """Time that the remaining work takes if all of it is slow."""
        return (self.state.left_seconds or 0.0) * (1 + self.trouble.slowdown)

    @property
    def redone_seconds(self) -> float:
        """Time to do the steps since the checkpoint again, at the healthy speed."""
        lost = self.state.lost_seconds
        slow = min(lost, self.trouble.lasted())
        return lost - float(slow_cost(self.trouble.slowdown, slow))

    @property
    def saves_first(self) -> bool:
        """Whether a save on request is cheaper than the steps since the last one."""
        return self.state.can_checkpoint and self._safe_seconds <= self.redone_seconds

    @property
    def _safe_seconds(self) -> float:
        return self.state.save_seconds + self.state.persist_seconds

    @property
    def failures_per_second(self) -> float:
        """Failures of the whole job, degraded nodes counted as often as they fail."""
        nodes = float(len(self.state.nodes))
        if self.trouble.kind == "degraded-hardware":
            nodes += max(len(self.nodes_out), 1) * (LEMON_FACTOR - 1)
        return nodes * self.state.failures_per_node_day / DAY_SECONDS

    def gains(self) -> Gains:
        """What a job gains that is rid of its slow part."""
        trouble, left, lasted = self.trouble, self.slow_left, self.trouble.lasted()
        persistence = self.policy.persistence(trouble.kind)
        low, high = trouble.slowdown_range or (trouble.slowdown, trouble.slowdown)
        shortest = longest = left
        if persistence is not None:
            shortest = min(persistence.quantile(0.1, lasted), left)
            longest = min(persistence.quantile(0.9, lasted), left)
        expected = float(expected_cost(trouble.slowdown, lasted, left, persistence))
        return Gains(
            expected=self.trust * expected,
            lasting=float(slow_cost(trouble.slowdown, left)),
            low=self.trust * float(slow_cost(low, shortest)),
            high=float(slow_cost(high, longest)),
        )

    def stop_price(self, *, restarts: float = 1.0, wait_seconds: float = 0.0) -> MovePrice:
        """Price of stopping now and starting again on the same number of free nodes."""
        state, saves = self.state, self.saves_first
        return MovePrice(
            lost_seconds=0.0 if saves else self.redone_seconds,
            save_seconds=self._safe_seconds if saves else 0.0,
            wait_seconds=wait_seconds,
            drain_seconds=state.drain_seconds,
            restart_seconds=restarts * state.restart_seconds,
        )

    def why_no_nodes(self) -> str:
        """Why nothing takes the place of the bad nodes; a queue of known length gives some in time."""
        state, needed = self.state, len(self.nodes_out)
        queue_known = state.queue_seconds > 0 and "queue_seconds" not in state.assumed
        if len(state.usable_spares) >= needed or queue_known:
            return ""
        return f"{len(state.usable_spares)} spare nodes for {needed}, and no known wait for others"

    def why_no_shrinking(self) -> str:
        state, out = self.state, len(self.nodes_out)
        if state.min_nodes is None:
            return "the job cannot shrink"
        left = len(state.nodes) - out
        if not out or left < 1:
            return "no node is known to be the cause, or all are"
        return "" if left >= state.min_nodes else f"{left} nodes left, at least {state.min_nodes}"

    def smaller(self, left_seconds: float) -> tuple[float, float]:
        """Seconds that the job loses without these nodes until they are repaired or it ends, and how
        often it restarts: once more to grow again.
        """
        nodes, out = len(self.state.nodes), len(self.nodes_out)
        whole = left_seconds * nodes / (nodes - out)
        shrunk = min(whole, self.state.repair_seconds)
        return shrunk * out / nodes, 2.0 if whole > self.state.repair_seconds else 1.0

    def option(
        self,
        action: ActionKind,
        price: MovePrice,
        gains: Gains,
        *,
        nodes_out: tuple[str, ...] = (),
        nodes_in: tuple[str, ...] = (),
        ranks: tuple[int, ...] = (),
        new_interval_seconds: float | None = None,
        not_before_seconds: float = 0.0,
        impossible: str = "",
    ) -> PricedOption:
        return PricedOption(
            action=action,
            price=price,
            price_range=self._price_range(price),
            gain_seconds=gains.expected,
            gain_range=(min(gains.low, gains.expected), max(gains.high, gains.expected)),
            lasting_gain_seconds=gains.lasting,
            usd=self._usd(gains.expected - price.seconds),
            nodes_out=nodes_out,
            nodes_in=nodes_in,
            ranks=ranks,
            new_interval_seconds=new_interval_seconds,
            not_before_seconds=not_before_seconds,
            impossible=impossible,
        )

    def _price_range(self, price: MovePrice) -> tuple[float, float]:
        """With the restart at the ends of its range."""
        known, ends = self.state.restart_seconds, self.state.restart_range
        if ends is None or not known:
            return price.seconds, price.seconds
        rest = price.seconds - price.restart_seconds
        low, high = (price.restart_seconds / known * end for end in ends)
        return rest + low, rest + high

    def _usd(self, net_seconds: float) -> float | None:
        usd = self.state.usd_per_gpu_hour
        return None if usd is None else usd_of(net_seconds * self.state.gpus, usd)
