"""Worker, shard and coordinator as state machines: messages in, messages out, under any loss, repetition or crash.

    messages, replica_messages      what the roles send each other
    worker, shard, coordinator      the three roles
    resend                          how often a large unanswered message is resent

    The coordinator's parts:
    host                            what the role needs from its process: durable storage and accounts
    shard_members                   boots of the shards, their silence, and which have loaded the snapshot
    worker_sessions                 the workers that are connected
    incarnation                     one incarnation: composes the parts below
    orders                          numbered orders to the shards
    snapshot_cuts                   a snapshot from its order to its commit
    data_passes, pass_epochs        which examples are next, and the epoch of each pass
    assignments                     a lease that may begin becomes a message to its worker
    worker_leases                   joins, reports, and the leases of workers that leave
    all_reduce                      which workers sum dense gradients among themselves, and when the sum counts
    replica_plans                   how replicas are exchanged, and which workers are members
    replica_meetings                which meeting of all workers is due or in progress, and which workers have attended
    meeting_course                  the steps of a meeting
    requests                        a user's switches and resizes, in order

    The relay of a machine:
    relay                           composes the parts below: between the machine's workers and the shards
    relay_messages                  what relay and shards send each other
    relay_pulls, relay_gives, relay_offers   what it combines, for one shard
    relay_link                      a worker's link to the relay: whether it is alive
    joint_offers                    the offers of several workers as one, and their mean

    For workers with dense replicas, the parts of a worker and of a shard:
    replica_exchange                exchanges with the shards, in the background or in meetings
    worker_replica                  the replica itself and the plan that it follows
    replica_offers                  offers to the shards, resent until answered
    meeting_attendance              the meeting that the worker is in
    sync_server                     the shard's part of the centre or of the mean

Theory of operation
===================

A role has no socket, no thread and no clock. Its process calls `handle(message)` and `tick()` and sends whatever the
role left in `out`. The network may lose, repeat, delay and reorder messages, and every process may die and come back,
so only two techniques are used throughout:

- *Resend until answered.* Each tick resends all unanswered messages. Small messages go out on every tick; large ones
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

Identifying the sender: incarnations and boots
----------------------------------------------
An *incarnation* is one history of the parameters. The coordinator takes its number from durable storage, and it is
higher than any before. Shards ignore messages of another incarnation; a worker that sends one must rejoin. A
*boot* is one start of a worker or shard, and later starts have higher numbers. The coordinator remembers the newest
boot of each peer, so a message from an earlier boot is never taken for a new one, and a boot that has not joined cannot
continue an old conversation.

    what happens                          what follows
    message lost                          resent at a later tick
    message repeated or late              answered again, or ignored
    worker silent longer than `patience`  its leases are reissued; to continue, it must rejoin with a new boot
    worker restarted (higher boot)        its leases are reissued, and it starts without any
    shard restarted (higher boot)         new incarnation
    coordinator restarted                 new incarnation

A worker holds nothing that cannot be computed again, so losing one costs a batch. (With replicas it also costs what
its replica had not exchanged yet.) A shard holds state, so losing one costs the steps since the last snapshot: in a
new incarnation *all* shards load the newest complete snapshot, and the accounts return to it. Every such loss takes
this one path; there is no partial recovery. ADR 12 explains why shards are not replicated.

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
4. One step is in progress at a time. The next is ordered when all shards have made the last one and the host is done
   with it, so an evaluation or a snapshot sees exactly one step.
5. `Assignment` names a version, and a shard parks a pull until it has made that step. Shards may answer from different
   steps, none older than the version; the worker reports the oldest, and staleness counts from it.

Why every example counts once
-----------------------------
A report also requests more work, under the next request number. The coordinator answers a repeated request with the
same lease and ignores an older one, so a lost answer costs a resend and not a lease. A report of a lease that another
worker holds is ignored, so a worker cannot end another worker's lease; a report of an ended lease changes nothing. If a
worker requests more work without reporting a lease that it was given, that lease is reissued. All other decisions about
leases are made in sync/, whose invariants apply.

Snapshots
---------
A snapshot is an order like any other, given right after a step: a *cut*. So it falls between the same two steps on
all shards, and nothing is drained. Each shard sets its state aside (copy on write, csrc/README.md), keeps working
and writes. The coordinator records its own state at the same moment: step, position in the data, ranges leased and not
begun, strategy, accounts. When every shard has written its part, the snapshot is committed; until then the previous
one is the newest. Storage ignores a commit of an incarnation that has been superseded. On restore, ranges that were
leased (including those of waiting gradients) are leased again with the same boundaries, so nothing that is missing from
the snapshot is counted as done.

Replicas
--------
If workers keep dense replicas, the shards act as sync servers. A worker offers each shard its part of the weights
and merges the answer: at once with a centre; for a mean, when all members have offered for the same meeting. The list
of members is an order, so a dead worker is not waited for. Offers are numbered; a repeated one is answered and moves
nothing. Before an evaluation, a snapshot, the end of a pass or a switch that concerns replicas, and when a worker
joins, the coordinator calls a *show*: workers stop stepping, the shards take the consensus of the replicas, and the
action is carried out once every completed step is accounted for. `Go` then carries the plan that applies from there on.

All-reduce
----------
In sync, workers may sum dense gradients among themselves (a *group*). A sum cannot be taken apart, so its gradients
count together or not at all: one member sends the sum to the shards (`GroupSumPush`), the others send only their rows
(`GroupRowsPush`), and the coordinator holds the reports until all members have reported. If one is lost, restarts or
has no sum (`GroupBroken`), all of the group's leases are reissued and the round goes through the shards. The
shards are authoritative in both cases. A member keeps a dense copy and applies the sum to it once the shards have done
so; a member that cannot do this gets the values from the shards. ADRs 10, 14, 15 and 16 have the reasons and the
rejected alternatives.

Two levels
----------
A machine with several workers may have a *relay*, which combines their traffic with the shards. In a round of sync that
has one lease per worker it fetches each row once and sends the sum of their gradients; in meetings of replicas it sends
the sum of their offers. Sums of gradients are safe for the same reason as in all-reduce: the reports of the round are
held until all have come, and if one is missing all leases are reissued. So a relay may sum any of them, die, and start
again without memory; a shard takes each lease's gradient once, in whatever sum, and refuses a sum that overlaps with
what it has. An offer has its worker, boot and number, whether it comes alone or in a sum, so repetition stays harmless;
a joint offer is refused if one of its workers counts as lost, and its offers are sent again one by one. A worker that
misses three heartbeats of its relay talks to the shards itself. ADR 24.
"""
