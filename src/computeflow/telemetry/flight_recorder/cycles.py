"""Circles of waits: `cycles`."""

from __future__ import annotations

from collections.abc import Hashable
from typing import TypeVar

_Node = TypeVar("_Node", bound=Hashable)


def _by_end(edges: dict[_Node, list[_Node]]) -> list[_Node]:
    """Nodes in the order in which a depth-first search leaves them."""
    order: list[_Node] = []
    seen: set[_Node] = set()
    for start in edges:
        stack: list[tuple[_Node, int]] = [] if start in seen else [(start, 0)]
        seen.add(start)
        while stack:
            node, at = stack.pop()
            if at == len(edges[node]):
                order.append(node)
                continue
            stack.append((node, at + 1))
            if (other := edges[node][at]) not in seen:
                seen.add(other)
                stack.append((other, 0))
    return order


def cycles(edges: dict[_Node, list[_Node]]) -> list[list[_Node]]:
    """Strongly connected components (Kosaraju), without recursion."""
    back: dict[_Node, list[_Node]] = {node: [] for node in edges}
    for node, after in edges.items():
        for other in after:
            back[other].append(node)
    components: list[list[_Node]] = []
    seen: set[_Node] = set()
    for start in reversed(_by_end(edges)):
        if start in seen:
            continue
        seen.add(start)
        part, left = [], [start]
        while left:
            node = left.pop()
            part.append(node)
            fresh = [other for other in back[node] if other not in seen]
            seen.update(fresh)
            left += fresh
        components.append(part)
    return components
