"""The process of a shard: holds its part of the rows and dense parameters, and writes its part of every snapshot."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from functools import partial

from gearshift.embedding.disk_errors import LostRows
from gearshift.engine.protocol.shard import ShardRole
from gearshift.engine.ray.background_load import load_in_background
from gearshift.engine.ray.connection import layout_of
from gearshift.engine.ray.coordinator_process import origin_of
from gearshift.engine.ray.process_context import Membership, ProcessContext
from gearshift.engine.ray.row_reader import RowReader
from gearshift.engine.ray.snapshots import ShardSnapshot, load_part, part_folder
from gearshift.errors import UserError, warn_through
from gearshift.parameters.server import Server
from gearshift.run.intact import naming_intact
from gearshift.run.low_priority import in_background
from gearshift.run.saver import why


def serve(member: Membership, context: ProcessContext) -> None:
    context.enter(restarted=member.restarted)
    warn_through(member.notify)
    context.folder.keep_lease(f"{member.me.role}-{member.me.number}")
    number = member.me.number
    training = context.build().training
    training.learner.server.threads = context.environment.threads
    layout, checkpoints = layout_of(training.learner, context.shards), context.folder.checkpoints

    def load(name: str, done: Callable[[Server], None]) -> None:
        def load_own() -> Server:
            with naming_intact(origin_of(context.folder.path)):
                return load_part(training.learner, layout, number, checkpoints / name)

        load_in_background(load_own, done, driver.post)

    def take_cut(name: str, server: Server) -> None:
        cut, incarnation = ShardSnapshot.of(server, number), role.incarnation

        def write() -> None:
            error = ""
            try:
                cut.write(part_folder(checkpoints, name), context.folder.check_not_taken)
            except LostRows as failed:  # another attempt would fail in the same way
                driver.post(partial(_fail, failed))
                return
            except OSError as failed:
                error = f"shard {number} could not write its part of {name}: {why(failed, checkpoints)}"
            except Exception as failed:  # any error, because the coordinator waits for an answer
                error = (
                    f"shard {number} could not write its part of {name} ({failed or type(failed).__name__})"
                )
            driver.post(partial(role.saved, incarnation, name, error))

        in_background("gearshift-cut", write)

    read_ahead = RowReader()
    with closing(context.connection.endpoint(member, training, context.shards)) as endpoint:
        driver = context.connection.driver(member, endpoint)
        member.ended_by(driver.stop)
        role = ShardRole(number, member.boot, load, take_cut, read_ahead.read)
        try:
            driver.run(role)
        except FloatingPointError as error:  # a restart would fail in the same way
            raise UserError(f"{error}. Lower optimizer.embeddings.lr or optimizer.dense.lr") from error


def _fail(error: UserError) -> None:
    raise error
