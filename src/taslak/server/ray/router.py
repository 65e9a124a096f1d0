"""Sends a session's requests to the replica that has their beginning in its prefix cache."""

from __future__ import annotations

import random
from typing import Any

from ray.serve.request_router import PendingRequest, RequestRouter, RunningReplica

from taslak.server.ray.session import by_preference


class SessionRouter(RequestRouter):
    """The replica that a session prefers; the least loaded one where that has too much to do, or where a
    request belongs to no session."""

    # a replica that computes may answer late how much it has to do; going elsewhere costs more than waiting
    queue_len_response_deadline_s = 2.0
    max_queue_len_response_deadline_s = 2.0

    def initialize_state(self, **kwargs: Any) -> None:
        """most: requests a replica may have while its sessions' next ones still go there."""
        self._most: int = kwargs["most"]

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        """Groups of replicas, tried in turn; of a group the least loaded is taken."""
        session = ""
        if pending_request is not None:
            pending_request.routing_context.should_backoff = True  # before the groups are tried again
            session = pending_request.metadata.session_id
        if not session:
            return [random.sample(candidate_replicas, len(candidate_replicas))]  # of equals any
        by_id = {replica.replica_id.unique_id: replica for replica in candidate_replicas}
        first, *others = (by_id[each] for each in by_preference(session, by_id))
        load = self.replica_queue_len_cache.get(first.replica_id)
        if load is not None and load >= self._most:
            return [[*others, first]]
        return [[first], others]
