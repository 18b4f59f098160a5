"""What holds for the spans of any request, whatever has become of it."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from opentelemetry.sdk.trace import ReadableSpan

from limelight.telemetry.span_tree import SpanRecord

STAGES = ("queue", "prefill", "decode")


@dataclass(frozen=True)
class Node:
    """A span of either kind: derived, or exported."""

    id: object
    parent: object
    name: str
    start: float
    end: float
    attributes: dict[str, object]
    events: list[tuple[str, float]]


def derived(spans: Sequence[SpanRecord]) -> list[Node]:
    return [
        Node(
            span.key,
            span.parent,
            span.name,
            span.start,
            span.end,
            dict(span.attributes),
            [(event.name, event.at) for event in span.events],
        )
        for span in spans
    ]


def exported(spans: Sequence[ReadableSpan]) -> list[Node]:
    return [
        Node(
            span.context.span_id,
            None if span.parent is None else span.parent.span_id,
            span.name,
            span.start_time,
            span.end_time,
            dict(span.attributes or {}),
            [(event.name, event.timestamp) for event in span.events],
        )
        for span in spans
    ]


def check_tree(nodes: Sequence[Node], root: Node) -> None:
    """Children lie within their parents and follow each other, and those of `root` cover it."""
    by_id = {node.id: node for node in nodes}
    assert len(by_id) == len(nodes), "ids are unique"
    below = [node for node in nodes if node is not root]
    for node in nodes:
        assert node.start <= node.end
        assert [at for _, at in node.events] == sorted(at for _, at in node.events)
        assert all(node.start <= at <= node.end for _, at in node.events), node
    for node in below:
        parent = by_id[node.parent]
        assert parent.start <= node.start, (node, parent)
        assert node.end <= parent.end, (node, parent)
        assert not [name for name in node.attributes if name.startswith("gen_ai.usage")]
    parents = {node.parent for node in below}
    leaves = [node for node in below if node.id not in parents]
    assert covered(leaves, root) >= 0.95
    for parent in parents:
        stages = [node for node in below if node.parent == parent and node.name in STAGES]
        assert [node.name for node in stages] == list(STAGES[: len(stages)])
        for before, after in itertools.pairwise(stages):
            assert before.end == after.start


def covered(nodes: Sequence[Node], root: Node) -> float:
    """The share of `root` during which one of `nodes` is open."""
    if root.end == root.start:
        return 1.0
    total, reached = 0.0, root.start
    for node in sorted(nodes, key=lambda node: node.start):
        total += max(0.0, node.end - max(node.start, reached))
        reached = max(reached, node.end)
    return total / (root.end - root.start)
