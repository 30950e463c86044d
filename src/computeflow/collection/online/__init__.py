"""Findings while runs go on: windows of live runs, the rule book over them, and what is open."""

from computeflow.collection.online.live_values import LiveFinding, LiveNode, LiveRun
from computeflow.collection.online.watcher import Watcher, WatchOptions

__all__ = ["LiveFinding", "LiveNode", "LiveRun", "WatchOptions", "Watcher"]
