"""The process of a machine's relay: it combines what the workers of this machine exchange with shards elsewhere.

Workers reach it through sockets and shared memory in a private folder of this machine; between machines its messages
are encrypted like all others. It ends when it has no workers left, and removes its folder.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from gearshift.engine.protocol.relay import RelayRole
from gearshift.engine.ray.process_context import Membership, ProcessContext
from gearshift.run import temporary_folders


def relay(member: Membership, context: ProcessContext) -> None:
    context.enter(restarted=member.restarted)
    training, connection = context.build().training, context.connection
    with (
        _sockets(context) as folder,
        closing(connection.endpoint(member, training, context.shards, folder)) as endpoint,
    ):
        connection.driver(member, endpoint).run(RelayRole(member.me.number, member.boot, context.shards))


@contextmanager
def _sockets(context: ProcessContext) -> Iterator[Path]:
    """The folder in which workers of this machine reach the relay."""
    if context.connection.wire == "ipc":
        yield Path(context.connection.sockets)
        return
    folder = temporary_folders.make(temporary_folders.SOCKETS, context.folder.path)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
