"""What Elasticsearch and OpenSearch say when they refuse, in one clause."""

from __future__ import annotations

from typing import Any

#: Type of the error when an index, or the whole cluster, takes no writes.
BLOCKED = "cluster_block_exception"


def reason_of(data: Any) -> tuple[str, str]:
    """Type and reason of the error in an answer or in an item of one, "" where there is none.

    Of an error that sums up others ("all shards failed") the first cause is taken.
    """
    error = data.get("error") if isinstance(data, dict) else None
    if isinstance(error, str):
        return "", error
    if not isinstance(error, dict):
        return "", ""
    causes = error.get("root_cause")
    if isinstance(causes, list) and causes and isinstance(causes[0], dict):
        error = {**error, **causes[0]}
    kind, reason = str(error.get("type", "")), str(error.get("reason", ""))
    inner = error.get("caused_by")
    if isinstance(inner, dict) and inner.get("reason") and str(inner["reason"]) not in reason:
        reason += f" ({inner['reason']})"
    return kind, f"{kind}: {reason}" if kind else reason


def blocked(reason: str) -> str:
    """The sentence for an index or cluster that takes no writes, with the remedy.

    At its flood-stage disk watermark a server makes indices read-only and refuses whatever is
    loaded after that, item by item, in answers with status 200.
    """
    if "/12/" in reason or "watermark" in reason or "read-only" in reason:
        return (
            f"the server takes no more passages: {reason}; its disk is too full: free space there (or raise "
            "cluster.routing.allocation.disk.watermark.flood_stage), lift the block with PUT INDEX/_settings "
            '{"index.blocks.read_only_allow_delete": null}, and run the same command again: what is loaded '
            "stays"
        )
    return (
        f"the server refuses: {reason}; lift that block and run the same command again: what is loaded stays"
    )
