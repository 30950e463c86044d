"""A claim, the outcome of its check, and the bench on which checks compute.

Checks register themselves by the name of their claim: `@check("spot")` on a function of a `Bench`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any, ClassVar, Literal

from computeflow.catalog import Catalog, find_model
from computeflow.catalog.files import packaged_rows
from computeflow.catalog.rows import CatalogRow, check_date
from computeflow.cluster.machine import usual_cluster
from computeflow.comparison import DATA
from computeflow.comparison.build_or_rent import Decision, RunNeed, decide, load_cases, need_of
from computeflow.errors import InputError
from computeflow.planning import plan
from computeflow.planning.quick_spaces import quick_space
from computeflow.prediction import Prediction
from computeflow.workload import Job

Verdict = Literal[
    "holds",
    "holds in part",
    "does not hold",
    "wrong unit",
    "wrong base",
    "contradicts itself",
    "cannot be checked",
]
_Topic = Literal["hardware", "sizing", "placement", "training", "power", "sites", "money"]
Basis = Literal["computed", "cited", "none"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim(CatalogRow):
    """What people repeat, and a document in which one can read it; `source` is where that lies."""

    kind: ClassVar[str] = "claim"
    topic: _Topic
    text: str
    command: str
    """Command that gives our figure, or the rows that it rests on."""
    title: str = ""
    """Title of the document; empty where nobody was found who signs the claim."""
    publisher: str = ""
    published: str = ""
    """Date; empty where the document bears none."""
    says: str = ""
    """What it says, where it is not the claim itself but the nearest that was found."""

    def __post_init__(self) -> None:
        super(Claim, self).__post_init__()
        if bool(self.title) != bool(self.publisher):
            raise InputError(f"claim {self.name}: a document has a title and a publisher")
        if self.published:
            check_date("published", self.published)

    @property
    def citation(self) -> str:
        """Title, publisher, date and place, and what the document says where that differs."""
        if not self.title:
            return self.source
        date = self.published or "undated"
        said = f"; says: {self.says}" if self.says else ""
        return f'"{self.title}", {self.publisher}, {date} ({self.source}){said}'


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The result of a check."""

    verdict: Verdict
    ours: str
    """Our figure with its range; "-" where there is none."""
    why: str
    basis: Basis = "computed"
    """computed: by the project's models or from catalog rows; cited: by a named source."""
    numbers: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedClaim:
    claim: Claim
    outcome: Outcome


@dataclass(slots=True)
class Bench:
    """The catalog, and predictions that several checks share."""

    catalog: Catalog
    seed: int = 0
    _plans: dict[tuple[Any, ...], Prediction] = field(default_factory=dict)
    _needs: dict[str, RunNeed] = field(default_factory=dict)
    _decisions: dict[str, Decision] = field(default_factory=dict)

    def best(
        self,
        model: str,
        accelerator: str,
        gpus: int,
        *,
        global_batch: int,
        seq_len: int,
        precision: str = "bf16",
        nic_bytes_per_second: float | None = None,
    ) -> Prediction:
        """The best quick plan on the catalog's usual node, as in `size` and `compare`."""
        key = (model, accelerator, gpus, global_batch, seq_len, precision, nic_bytes_per_second)
        if key not in self._plans:
            job = Job(
                model=find_model(self.catalog, model),
                global_batch=global_batch,
                seq_len=seq_len,
                precision=precision,
            )
            cluster = usual_cluster(
                accelerator, gpus, self.catalog, nic_bytes_per_second=nic_bytes_per_second
            )
            plans = plan(job, cluster, top=1, space=quick_space(job, gpus)).plans
            if not plans:
                raise InputError(f"{model} fits on {gpus} {accelerator} in no layout")
            self._plans[key] = plans[0].prediction
        return self._plans[key]

    def need(self, case: str) -> RunNeed:
        if case not in self._needs:
            self._needs[case] = need_of(load_cases()[case], self.catalog, seed=self.seed)
        return self._needs[case]

    def decision(self, case: str) -> Decision:
        if case not in self._decisions:
            self._decisions[case] = decide(
                self.need(case), self.catalog, upgrade=None, seed=self.seed
            )
        return self._decisions[case]


Check = Callable[[Bench], Outcome]
CHECKS: dict[str, Check] = {}


def check(*names: str) -> Callable[[Check], Check]:
    def registered(function: Check) -> Check:
        for name in names:
            CHECKS[name] = function
        return function

    return registered


@cache
def load_claims() -> dict[str, Claim]:
    return {row.name: row for row in packaged_rows(DATA / "claims.toml", "claim", Claim)}


def mfu_range(prediction: Prediction) -> tuple[float, float, float]:
    """Low, as predicted, high: from the range that holds 80 % of runs."""
    mfu = prediction.ledger.mfu
    assert mfu is not None
    low, high = prediction.step_seconds_range
    return mfu * prediction.step_seconds / high, mfu, mfu * prediction.step_seconds / low


def is_near(value: float, claimed: float, off: float = 0.05) -> bool:
    return abs(value / claimed - 1) <= off


def verdict_of_ranges(ours: tuple[float, float], claimed: tuple[float, float]) -> Verdict:
    """Holds where our range lies in the claimed one, in part where the two meet."""
    if claimed[0] <= ours[0] and ours[1] <= claimed[1]:
        return "holds"
    return "holds in part" if ours[0] <= claimed[1] and claimed[0] <= ours[1] else "does not hold"


def verdict_of_facts(*facts: bool) -> Verdict:
    """Holds where all are so, in part where some are."""
    if all(facts):
        return "holds"
    return "holds in part" if any(facts) else "does not hold"


def percent(share: float, digits: int = 1) -> str:
    return f"{100 * share:.{digits}f} %"


def share_range(values: tuple[float, float, float]) -> str:
    low, mid, high = values
    return f"{100 * mid:.1f} % ({100 * low:.1f} to {100 * high:.1f})"
