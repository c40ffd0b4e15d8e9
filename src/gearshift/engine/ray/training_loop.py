"""The coordinator's loop: it carries out users' requests between two messages, and ends with a checkpoint."""

from __future__ import annotations

from typing import Any

from gearshift.engine.ray.session import CoordinatorSession
from gearshift.engine.wire.driver import CoordinatorRunner
from gearshift.errors import UserError


class TrainingRunner(CoordinatorRunner):
    def __init__(self, session: CoordinatorSession) -> None:
        super().__init__(session.role, session.context.connection.tick)
        self._session, self._accounts, self._parts = session, session.accounts, session.parts

    def handle(self, message: Any) -> None:
        self._stop_if_requested()
        super().handle(message)
        self._accounts.handle_requests()
        self.role.proceed()

    def tick(self) -> None:
        session, role = self._session, self.role
        if reason := session.process_manager.failure():
            raise UserError(reason)
        if not role.sessions:
            self._accounts.clock.restart()  # workers are starting: this is no training time
        session.use_relays()
        super().tick()
        for shard in role.shards.take_silent():
            session.shards.replace(shard)
        for worker, boot in role.sessions.take_silent():
            session.replace_worker(worker, boot)
        self._stop_if_requested()
        self._parts.saving.request_in_time()
        self._save_if_alone()
        self._accounts.handle_requests()
        role.proceed()

    def over(self) -> bool:
        if not self.role.over:
            return False
        self._session.process_manager.rest()
        return self._saved_all()

    def _stop_if_requested(self) -> None:
        """Stops while no worker is active. Otherwise this is done after the next step."""
        if self._session.observer.stop_requested and not self.role.over:
            self.role.stop()
            if self.role.over:
                self._accounts.note_position()

    def _save_if_alone(self) -> None:
        """Saves on request while no worker is active. Otherwise this is done after the next step."""
        role = self.role
        if role.epoch is not None and not role.sessions and role.epoch.at_rest and not role.over:
            self._accounts.save_if_requested()

    def _saved_all(self) -> bool:
        """At the end: whether the last step is saved. If not, the save is retried."""
        last_save, saver, step = self._parts.last_save, self._session.saver, self._session.training.step
        last_save.begin()
        if self._session.shards.cut_in_progress is not None:
            return False
        if saver.has(step):
            last_save.retries.succeeded()
            return True
        if failure := saver.take_failure(step):
            last_save.retries.failed(failure)
        if not last_save.retries.active or last_save.retries.due():
            self._parts.saving.save_now()
        return False
