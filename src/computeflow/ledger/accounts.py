"""The accounts: what a GPU-second can have been spent on, who can change it, in one tree.

`compute` and `comm` are parents; seconds are booked at the deepest level that the signals allow.
Each account has a page, `docs/accounts/<name>.md`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from computeflow.errors import UnknownNameError

Owner = Literal["useful", "site", "design", "tuning", "mixed", "unknown"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    name: str
    owner: Owner
    """Who can fix it: site (where and how the cluster is run), design (how cluster and job are
    laid out), tuning (the code)."""
    doc: str
    falls_to: str = "unexplained"
    """Account where its seconds are booked when no signal separates them."""

    @property
    def parent(self) -> str | None:
        head, dot, _ = self.name.rpartition(".")
        return head if dot else None


def _account(name: str, owner: Owner, doc: str, falls_to: str = "unexplained") -> Account:
    return Account(name=name, owner=owner, doc=doc, falls_to=falls_to)


ACCOUNTS: dict[str, Account] = {
    account.name: account
    for account in (
        _account(
            "compute", "mixed", "kernels of the model, where no FLOPs are known to split them"
        ),
        _account(
            "compute.model",
            "useful",
            "model FLOPs over the dense peak; its share is the MFU",
            "compute",
        ),
        _account(
            "compute.clock",
            "site",
            "matmul and attention time lost to clocks under the one the peak assumes",
            "compute.kernel",
        ),
        _account(
            "compute.kernel", "tuning", "the rest of forward and backward kernel time", "compute"
        ),
        _account("compute.recompute", "tuning", "activation recomputation", "compute.kernel"),
        _account(
            "optimizer", "tuning", "optimizer step, gradient clipping, zeroing", "compute.kernel"
        ),
        _account("copy", "tuning", "exposed host-device copies and offload traffic"),
        _account("host", "tuning", "GPU idle because the CPU was late: launches, syncs, GC"),
        _account("input", "design", "GPU idle waiting for data", "host"),
        _account("comm", "design", "exposed communication, where the groups are not known"),
        _account("comm.tp", "design", "exposed tensor-parallel transfers", "comm"),
        _account("comm.cp", "design", "exposed context-parallel transfers", "comm"),
        _account("comm.ep", "design", "exposed expert-parallel transfers", "comm"),
        _account("comm.pp", "design", "exposed pipeline transfers", "comm"),
        _account("comm.dp", "design", "exposed data-parallel transfers", "comm"),
        _account("comm.other", "design", "exposed transfers of any other group", "comm"),
        _account(
            "bubble",
            "design",
            "pipeline wait that would remain if every op took its same-role median",
            "comm.pp",
        ),
        _account("imbalance", "design", "wait caused by unequal work", "comm"),
        _account("straggler", "site", "wait caused by equal work at unequal speed", "comm"),
        _account("checkpoint", "design", "blocked on saving"),
        _account("evaluation", "design", "evaluation between steps"),
        _account("startup", "design", "first launch, initialisation, compilation", "idle"),
        _account("restart", "site", "detecting a failure, restarting, warming up", "idle"),
        _account("lost", "site", "steps done again after a failure, all their accounts", "compute"),
        _account("idle", "site", "allocated, nothing running"),
        _account("unexplained", "unknown", "what nothing explains"),
    )
}
PARENTS = ("compute", "comm")


def account(name: str) -> Account:
    found = ACCOUNTS.get(name)
    if found is None:
        raise UnknownNameError("account", name, ACCOUNTS)
    return found
