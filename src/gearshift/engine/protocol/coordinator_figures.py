"""What a coordinator on the network shows of itself."""

from __future__ import annotations

from gearshift.engine.protocol.coordinator import CoordinatorRole


def coordinator_figures(role: CoordinatorRole) -> dict[str, float]:
    """The members that are present, and what is in progress. May be called from any thread."""
    groups = role.all_reduce_groups
    figures: dict[str, float] = {
        "workers": len(role.sessions),
        "orders_open": 0,
        "incarnation": role.incarnation,
        "ring_rounds": groups.rounds - groups.relayed_rounds,
        "relayed_rounds": groups.relayed_rounds,
        "rings_broken": groups.broken,
    }
    if (running := role.running) is not None:
        work = running.passes.epoch.coordinator.work
        figures["orders_open"] = len(running.orders.open)
        figures |= {"leases_open": len(work.flying), "gradients_waiting": len(work.waiting)}
    return figures
