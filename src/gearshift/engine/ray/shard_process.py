"""A shard as a process: its part of rows and dense parameters, and of every snapshot."""

from __future__ import annotations

from contextlib import closing
from functools import partial

from gearshift.engine.protocol.shard import ShardRole
from gearshift.engine.ray.process_context import Membership, ProcessContext, driver_of, endpoint_of, layout_of
from gearshift.engine.ray.snapshots import ShardSnapshot, load_part, part_folder
from gearshift.errors import UserError
from gearshift.parameters.server import Server
from gearshift.run.low_priority import in_background
from gearshift.run.saver import why


def serve(member: Membership, context: ProcessContext) -> None:
    context.enter(restarted=member.restarted)
    context.keep_lease(member)
    number = member.me.number
    training = context.build().training
    training.learner.server.threads = context.threads
    layout = layout_of(training.learner, context.shards)

    def load(name: str) -> Server:
        return load_part(training.learner, layout, number, context.checkpoints / name)

    def take_cut(name: str, server: Server) -> None:
        cut, incarnation = ShardSnapshot.of(server, number), role.incarnation

        def write() -> None:
            error = ""
            try:
                cut.write(part_folder(context.checkpoints, name), context.check_not_taken)
            except OSError as failed:
                error = (
                    f"shard {number} could not write its part of {name}: {why(failed, context.checkpoints)}"
                )
            except Exception as failed:  # whatever it is: the coordinator waits for an answer
                error = (
                    f"shard {number} could not write its part of {name} ({failed or type(failed).__name__})"
                )
            driver.post(partial(role.saved, incarnation, name, error))

        in_background("gearshift-cut", write)

    with closing(endpoint_of(member, context, training)) as endpoint:
        driver = driver_of(member, context, endpoint)
        role = ShardRole(number, member.boot, load, take_cut)
        try:
            driver.run(role)
        except FloatingPointError as error:  # it would come to this again, however often it starts
            raise UserError(f"{error}. Lower optimizer.embeddings.lr or optimizer.dense.lr") from error
