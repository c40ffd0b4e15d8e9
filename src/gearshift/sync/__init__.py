"""Synchronisation strategies: pure state machines, events in, actions out.

    events        events and actions, plain values
    work          the shared record: parked workers, leases in flight, gradients waiting, examples to lease
    strategy      the three questions that a strategy answers
    coordinator   takes an event, updates the record, queries the strategy, returns actions
    registry      strategies by name or `module:Class`; the batch sizes that follow from a global batch
    checks        checks of a strategy's settings
    automatic     `auto`: predicts the speed of sync and gba and proposes a switch when it pays off
    flight, copies, speeds    a lease under way; leases that two workers compute; how fast each worker is
    synchronous, balanced, asynchronous, bounded_staleness, ringmaster, buffered_async, backup_workers,
    global_batch  one strategy each
    exchange      how replicas exchange weights: five choices, as values
    replicated    the strategies with a dense replica per trainer, as values of these choices

Theory of operation
===================

Deciding is separate from doing. Nothing in this package touches a tensor, a clock, a thread, a socket or a random
number; an import contract in pyproject.toml forbids the modules. A gradient is represented by the number of its lease
and nothing else. So the same objects decide for threads, for processes on Ray and for a simulator in virtual time,
and they can be tested with text and replayed from a log.

                events                                            actions
    engine ---> WorkRequested, GradientArrived,   coordinator     Begin, Apply, Discard,     ---> engine
                GradientRefused, WorkerJoined,     |       ^      Reissue, Duplicate, Exchange    carries them out
                WorkerLost, Supplied,              v       |                                      in order
                DataExhausted, SwitchRequested,   Work <- strategy
                ExchangeDone, TimePassed        (record)  (reads the record, answers three questions)

After each event the coordinator does five things, always in this order: it updates the record, forms every step that
can be formed (`form`), starts an exchange of replicas if one is due, gives work to parked workers (`start`), and lets
those that still wait compute an open lease a second time, if the strategy does that (`copy`).
There is no "wait" action. A worker that requests work and gets no `Begin` is parked and reconsidered after each later
event.

A strategy is a frozen dataclass of settings and has no state. All state is in the record, and this is what
makes a live switch possible: the next strategy reads the same record.

Leases
------
A lease is a range of examples with a number that is never reused. It is the unit of work, of loss and of accounting:

                 Begin               GradientArrived              Apply
    supply -----------------> flying -----------------> waiting -----------> ended: applied
      ^                        |  |                                          (discarded, if its weight is 0)
      |  Reissue: worker lost  |  |  Discard: too late (`refuse`), or the gradient is unusable
      +------------------------+  +----------------------------------------> ended: discarded

A reissued lease has ended. Its examples go back to the supply and are leased again, first in line, under a new number
and with `attempt` one higher. A gradient that has arrived no longer depends on its worker: if the worker dies, the
gradient still waits for its step. The invariants:

1. A lease ends exactly once: applied, discarded, reissued or as a duplicate.
2. Every supplied example is in exactly one place: supply, flying, waiting or ended. None is lost and none counts
   twice.
3. Steps are numbered without gaps. Every step has at least one part, and no weight is negative.
4. Late and repeated reports are harmless. A second arrival of a waiting gradient changes nothing. A gradient whose
   lease has ended gets a `Discard` with `ended_before`, which counts nothing. A worker that joins twice has restarted,
   so its leases are reissued. A request from a worker that was declared lost is ignored until it joins again. (A worker
   may request more work while it holds a lease, so duplicate requests must be filtered earlier: see engine/protocol.)
5. Every discarded gradient has its reason in words, in `Discard` or in its `Part` of a step.

Copies
------
Under balanced a worker may get a *copy*: a lease with the examples of an open lease (`Work.copies`). One of the two,
the original, is in `flying` and stands for the examples. When either gradient arrives, its lease becomes the original
if it was not, and the other ends as a `Duplicate`. If one worker is lost, or has no usable gradient, its lease ends as
a duplicate too, and the other one remains. A worker whose lease has ended as a duplicate may still compute it: this is
noted (`dropped`), so that its time counts when it ends. `Coordinator.wakes_at` says when time alone may let a copy
begin; the engine then reports `TimePassed`.

At the end, when the data is exhausted, everything is leased and nothing is in flight (`Work.ending`), all waiting
gradients form a last step, even if it is smaller than a global batch.

Token and version; lag and staleness
------------------------------------
`Begin` carries two step numbers. The *version* is a requirement on the parameters: the worker must see at least that
many applied steps. It is the number of steps decided so far, so a `Begin` may name a step that the shards have not
applied yet; the engine then holds the pull until they have. The *token* is a schedule: with token t the gradient is
meant for the step that follows t applied steps. Two different delays of a gradient that enters a step follow from them:

    staleness = steps applied - version     how old were the parameters it was computed on?
    lag       = steps applied - token       how late is it against its schedule? negative: early

A worker may pull newer parameters than required; it then reports the version that it saw (the oldest over all
shards). Here are three workers under gba, where two gradients form a step (t: token, v: version):

    a  [t0 v0]--.  [t1 v0]-----.  [t2 v1 ...        step 1 = a's first  (lag  0, staleness 0)
    b  [t0 v0]--|--------------|---.                         c's first  (lag -1, staleness 0)
    c  [t1 v0]--|--.  [t2 v1 ..|...|....            step 2 = a's second (lag  0, staleness 1)
                '--'           '---'                         b's first  (lag  1, staleness 1)
              step 1          step 2

In step 2 both gradients are equally stale: with N workers and M gradients per step, staleness is about (N-1)/M for
every worker, straggler or not. Only b is late. gba therefore weights gradients by lag, not by staleness (by default it
drops those whose lag exceeds `max_lag`), and all other gradients keep full weight. In sync both are 0 for all
work that was begun under sync, because no worker begins step k+1 before step k is decided.

Since token - version steps lie between the pull and the step that the gradient is meant for, a strategy may let the
worker pull a prediction: `Begin.extrapolation` has this number of steps, and the share of the first of them whose
gradients already wait. The servers extrapolate their dense parameters accordingly (optim/prediction.py). Nothing else
sees the prediction. A strategy may also lower the dense rate of a stale step (`Apply.dense_rate`). Where nothing is
stale, as in sync, both are absent and not merely small.

A switch
--------
`SwitchRequested` replaces the strategy and keeps the record. The switch itself recalls no lease, drops no gradient
and changes no parameter or optimizer state. Work in flight and gradients waiting are *adopted*:

- Leases that exist at the switch are known by their numbers (`adopted_before`). Their tokens are raised to the
  current step, so no work is late because of an obsolete schedule.
- Each worker's count of delivered gradients restarts at 0, so no worker is behind because of the past.
- Ranges not yet leased are split by the new batch size. A range that is a single lease stays whole.
- Each strategy defines how it treats adopted work. sync fills its first rounds with it, while early workers wait; an
  adopted gradient that is staler than gba allows by default, counted in steps of the earlier strategy, gets weight 0.
  backup_workers never treats it as too late. gba counts its lag from the switch.

A step is `global_batch` examples, however they were split, so it can combine leases of the old and the new size.

`auto` runs next to the coordinator. Its proposal enters as a `SwitchRequested`, like a user's.

Replicas
--------
Under easgd, bmuf, model_averaging and k_step_adam a worker makes the dense step itself, on its own replica, before it
reports. Each gradient is then a step with one part. The step accounts for the lease; its dense part changes nothing on
the servers. If all replicas must synchronise in the training loop, the coordinator returns `Exchange` once nothing is
in flight, and no worker begins until `ExchangeDone`. Exchanges in the background, or between one trainer and the
centre, are not decisions and do not appear here.

Replay
------
Time enters only as `at` in events, which balanced reads (and as `seconds`, which only `auto` reads). The actions are
therefore a function of the starting point (strategy, settings, step, first lease number) and of the events in order. An
engine logs each event with its actions; `gearshift replay` feeds the events to a new coordinator and compares the
actions. A difference means that the log was changed, or that this version decides differently. State kept inside a
strategy would break both replay and switching.
"""
