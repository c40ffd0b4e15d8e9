"""Blocking requests of the coordinator to the shards: reading rows, and waiting for the end of a cut.

A shard that does not answer in time is replaced; one that has restarted has lost its state. Both raise `StateLost`, and
the run goes back to its last checkpoint.
"""

from __future__ import annotations

import time

from gearshift.data.batch import Ids
from gearshift.engine.protocol.coordinator import CoordinatorRole
from gearshift.engine.protocol.host import StateLost
from gearshift.engine.protocol.messages import Done, Message, Peek, Saved, Seen, ShardHello, To
from gearshift.engine.protocol.snapshot_cuts import CutInProgress
from gearshift.engine.ray.process_manager import ProcessManager
from gearshift.engine.wire.driver import Driver


class ShardQuestions:
    def __init__(
        self,
        role: CoordinatorRole,
        driver: Driver,
        process_manager: ProcessManager,
        shards: int,
        patience: float,
    ) -> None:
        self._role, self._driver, self._process_manager = role, driver, process_manager
        self._shards, self._patience = range(shards), patience
        self._question = 0

    @property
    def most_ids(self) -> int:
        """The maximum number of ids in one request."""
        return self._driver.endpoint.limits.ids

    @property
    def cut_in_progress(self) -> CutInProgress | None:
        """The snapshot that is being written."""
        return None if self._role.running is None else self._role.running.cuts.current

    def replace(self, shard: int) -> None:
        """Replaces an unresponsive shard."""
        role = self._role
        reason = f"shard {shard} was silent for {role.shards.patience:g} s"
        self._process_manager.replace(To("shard", shard), role.shards.boot_of(shard), reason)

    def peek(self, ids: list[tuple[Ids, ...]]) -> dict[int, Seen]:
        """The rows of these ids, by shard and store, and the dense values of each shard."""
        self._question += 1
        role, number, answers = self._role, self._question, dict[int, Seen]()

        def take(message: Message) -> bool:
            match message:
                case Seen(incarnation, shard, _, question):
                    if (incarnation, question) == (role.incarnation, number):
                        answers[shard] = message
                    return True  # or to a request that was already answered
                case ShardHello(shard, boot) if role.shards.is_new(shard, boot):
                    raise StateLost
            return False

        began = time.monotonic()
        while len(answers) < len(self._shards):
            for shard in set(self._shards) - answers.keys():
                question = Peek(role.incarnation, number, ids[shard])
                self._driver.endpoint.send(To("shard", shard), question)
            self._driver.listen(take, lambda: len(answers) == len(self._shards))
            if time.monotonic() - began > self._patience:
                for shard in set(self._shards) - answers.keys():
                    self.replace(shard)
                raise StateLost
        return answers

    def wait_for_cut(self) -> None:
        """Waits until the snapshot in progress is finished. Shards send heartbeats every tick."""
        role = self._role
        heard = dict.fromkeys(self._shards, time.monotonic())

        def take(message: Message) -> bool:
            match message:
                case Done() | Saved():
                    heard[message.shard] = time.monotonic()
                    role.take(message)
                    return True
                case ShardHello(shard, boot) if role.shards.is_new(shard, boot):
                    raise StateLost
            return False

        while self.cut_in_progress is not None:
            self._driver.listen(take, lambda: self.cut_in_progress is None)
            if role.running is not None:
                role.running.resend()
            self._driver.send(role)
            for shard in sorted(self.cut_in_progress.unsaved) if self.cut_in_progress is not None else ():
                if time.monotonic() - heard[shard] > self._patience:
                    self.replace(shard)
                    raise StateLost
