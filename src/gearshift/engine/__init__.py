"""Engines run the workers that train. All of them drive the same coordinator, so they all keep the same accounts.

local_engine     the engine of one process, LocalEngine; its loop is `inline` for one worker, `threads` for several
epoch           one epoch's leases from supply to end: the coordinator decides, the shards apply, the host is notified
lease_batches   batches for leases, in order
local_replicas  replicas of the workers in this process; live_replicas shares them among threads, shadow_threads
                exchange them in the background
simulation/     a cluster in virtual time: timing only, or with real gradients
protocol/       worker, shard and coordinator as state machines driven by messages: no socket, no thread, no clock
wire/           their messages over ZeroMQ
ray/            the cluster engine: processes on Ray that communicate over the wire
"""
