"""Worker, shard and coordinator as message machines: messages in, messages out, under any loss, repetition or crash.

    messages, replica_messages      what the roles send each other
    worker, shard, coordinator      the three roles
    resend                          how often a large unanswered message is resent

    The coordinator's parts:
    host                            what the role needs from its process: durable storage and accounts
    shard_members                   boots of the shards, their silence, and who has loaded the snapshot
    worker_sessions                 the workers that are here
    incarnation                     one incarnation at work: the parts below, put together
    orders                          numbered orders to the shards
    snapshot_cuts                   a snapshot from its order to its commit
    data_passes, pass_epochs        which examples are next, and the epoch of each pass
    assignments                     a lease that may begin becomes a message to its worker
    worker_leases                   joins, reports, and the leases of workers that go
    all_reduce                      which workers sum dense gradients among themselves, and when the sum counts
    replica_plans                   how replicas are exchanged, and who is a member
    replica_meetings                which meeting of all workers is wanted or under way, and who has met
    meeting_course                  what is done in a meeting, step by step
    requests                        a user's switches and resizes, in order

    A worker's parts where workers keep dense replicas, and a shard's:
    replica_exchange                exchanges with the shards, beside the training or in meetings
    worker_replica                  the replica itself and the plan that it follows
    replica_offers                  offers to the shards, resent until answered
    meeting_attendance              the meeting that the worker is in
    sync_server                     the shard's part of the centre or of the mean

Theory of operation
===================

A role has no socket, no thread and no clock. Its process calls `handle(message)` and `tick()` and sends whatever the
role left in `out`. The network may lose, repeat, delay and reorder messages, and every process may die and come back,
so only two techniques are used throughout:

- *Resend until answered.* Each tick resends what has no answer yet. Small messages go out on every tick; large ones
  (pulls, gradients, reports with predictions, offers of replicas) back off: after 1, 2, 4, 8, 16 and 32 ticks, then
  every 32.
- *Make repetition harmless.* Each request has a number or a name (request, pull, lease, order, cut). A receiver that
  has already acted answers again and does nothing. An answer that nobody waits for is ignored.

No single message has to arrive, or arrive once, or in order; some copy of it has to arrive eventually. One lease:

    worker                     coordinator                      each shard
      | Hello(boot) ---------------->|                               |
      |<------- Welcome(incarnation) |                               |
      | Report(request 1) ---------->|  parked until the strategy    |
      |<-- Assignment(lease, version)|  lets it begin                |
      | Pull(version) ---------------------------------------------->|  parked until step >= version
      |<------------------------------------------------------- Rows |
      | (computes)                   |                               |
      | Give(lease, gradient) -------------------------------------->|  kept under the lease's number
      |<------------------------------------------------------ Taken |
      | Report(request 2, done) ---->|  "all shards have it; more?"  |
      |                              | Tell(order 7: step 3 = ...) ->|  applied in order of number
      |<-- Assignment(next lease)    |<-------------------- Done(7)  |

Which process is speaking: incarnations and boots
-------------------------------------------------
An *incarnation* is one history of the parameters. The coordinator takes its number from durable storage, and it is
higher than any before. Shards ignore messages of another incarnation; a worker that sends one is told to rejoin. A
*boot* is one life of a worker or shard, and later lives have higher numbers. The coordinator remembers the newest
boot of each peer, so a message from an earlier life cannot pass for a new one, and a life it has not met cannot
continue an old conversation.

    what happens                          what follows
    message lost                          resent at a later tick
    message repeated or late              answered again, or ignored
    worker silent longer than `patience`  its leases are reissued; when it speaks again it must rejoin with a new boot
    worker restarted (higher boot)        its leases are reissued, and it starts empty-handed
    shard restarted (higher boot)         new incarnation
    coordinator restarted                 new incarnation

A worker holds nothing that cannot be computed again, so losing one costs a batch. (With replicas it also costs what
its replica had not exchanged yet.) A shard holds state, so losing one costs the steps since the last snapshot: in a
new incarnation *all* shards load the newest whole snapshot and the accounts go back to it. There is one path for
every such loss, and no partial recovery; ADR 12 says why shards are not replicated.

Why all shards make the same steps
----------------------------------
1. The coordinator sends every shard the same *orders* (make a step of these leases, drop a lease, take a cut, these
   are the members), numbered from 1 without gaps. A shard keeps an early order until its turn, carries out each once
   and in sequence, and answers with the highest number done. An order is resent to those that have not done it.
2. A worker reports a gradient only after every shard has acknowledged its part. So an order never names a gradient
   that a shard lacks.
3. A shard keeps a gradient under its lease and refuses it once the lease has ended (it still acknowledges, so that
   the worker stops resending). So a late copy of a dropped or applied gradient has no effect. Orders that end leases
   carry the lowest lease number that is still open, and a shard forgets everything below it: its memory stays
   bounded.
4. One step is under way at a time. The next is ordered when all shards have made the last one and the host has had
   its look, so an evaluation or a snapshot sees exactly one step.
5. `Assignment` names a version, and a shard parks a pull until it has made that step. Shards may answer from different
   steps, none older than the version; the worker reports the oldest, and staleness counts from it.

Why every example counts once
-----------------------------
A report also asks for more work, under the next request number. The coordinator answers a repeated request with the
same lease and ignores an older one, so a lost answer costs a resend and not a lease. A report of a lease that another
worker holds is ignored, so nobody can end somebody else's lease; one of a lease that has ended changes nothing. If a
worker asks for more and does not report a lease that it was given, that lease is reissued. What becomes of leases
otherwise is decided in sync/, whose invariants apply.

Snapshots
---------
A snapshot is an order like any other, given right after a step: a *cut*. So it falls between the same two steps on
all shards, and nothing is drained. Each shard sets its state aside (copy on write, csrc/README.md), keeps working
and writes. The coordinator notes the facts of the same moment: step, position in the data, ranges leased and not
begun, strategy, accounts. When every shard has written its part, the snapshot is committed; until then the previous
one is the newest. Storage ignores a commit of an incarnation that has been superseded. On restore, ranges that were
leased (gradients that waited included) are leased again as they were cut, so nothing that the snapshot lacks is
counted as done.

Replicas
--------
Where workers keep dense replicas, the shards act as sync servers. A worker offers each shard its part of the weights
and merges the answer: at once with a centre; for a mean, when all members have offered for the same meeting. The list
of members is an order, so a dead worker is not waited for. Offers are numbered; a repeated one is answered and moves
nothing. Before an evaluation, a snapshot, the end of a pass or a switch that concerns replicas, and when a worker
joins, the coordinator calls a *show*: workers stop stepping, the shards take what the replicas agree on, and once
every step made is accounted for the action is carried out. `Go` then brings the plan that holds from there.

All-reduce
----------
In sync, workers may sum dense gradients among themselves (a *group*). A sum cannot be taken apart, so its gradients
count together or not at all: one member gives the sum to the shards (`GroupSumPush`) and the others their rows alone
(`GroupRowsPush`), and the coordinator holds the reports until all members have reported. If one is lost, restarts or
has no sum (`GroupBroken`), all of the group's leases are given out again and the round goes through the shards. The
shards hold the truth in both cases. A member keeps a dense copy and steps it with the sum once the shards have; one
that cannot gets the values from them. ADRs 10, 14, 15 and 16 have the reasons and what was rejected.
"""
