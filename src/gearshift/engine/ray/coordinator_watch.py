"""Polls the coordinator of a run for its status. Nothing here waits long for an answer."""

from __future__ import annotations

import time
from typing import Any

from gearshift.engine.ray.outcome import LaunchedOutcome, LaunchedProcesses
from gearshift.engine.ray.silence import Loss, Silence
from gearshift.run.status import Status

POLL_SECONDS = 0.2
SOON_SECONDS = 1.0  # how long one poll waits for an answer
ANSWER_SECONDS = 20.0  # time after which an unanswered request is repeated


class CoordinatorWatch:
    def __init__(
        self, processes: LaunchedProcesses, silence: Silence, outcome: LaunchedOutcome, messages: list[str]
    ) -> None:
        """The coordinator's messages are added to `messages`."""
        self._processes, self._silence, self._outcome, self._messages = processes, silence, outcome, messages
        self.header: tuple[str, ...] = ()
        self.status = Status(0, 0, 1, 0.0, 0.0, float("nan"), float("nan"), None, "starting")
        self.answer: dict[str, Any] = {}  # the newest
        self.plain_warning: str | None = None  # the warning about steps with too few gradients
        self._seen, self._start = 0, 0  # messages received from this start of the coordinator
        self._question: Any = None  # the pending request to the coordinator
        self._questioned_at = self._asked_at = 0.0
        self._looking = self._stopping = False
        self._stop_heard_by = -1  # the start of the coordinator that was asked to stop

    def look(self) -> None:
        """Polls once. Never takes long: an unanswered request is checked again next time."""
        if self._outcome.over or self._looking or time.monotonic() - self._asked_at < POLL_SECONDS:
            return
        self._looking = True  # a signal handler may ask for the status in the meantime
        try:
            self._look_now()
        finally:
            self._looking = False

    def _look_now(self) -> None:
        processes, local = self._processes, self._processes.context.local
        if local is not None and local.died():
            if not self._outcome.end_if_recorded():  # a run ends its local cluster when it has ended
                self._outcome.lose(Loss(f"the Ray cluster of this run died ({local.last_words()})"))
            return
        if self._question is None:
            self._question = processes.coordinator.watch.remote(self._seen, self._start)
            self._questioned_at = time.monotonic()
        if not processes.ray.answered(self._question, SOON_SECONDS):
            self.hear_nothing()
            if time.monotonic() - self._questioned_at > ANSWER_SECONDS:
                self._question = None
            return
        answer, self._question = processes.ray.answer(self._question), None
        self._asked_at = time.monotonic()
        if answer is not None:
            self._hear(answer)
        else:
            self.hear_nothing()

    def hear_nothing(self) -> None:
        """The coordinator does not answer: the run may have ended, be restarting, or be lost."""
        if self._outcome.end_if_recorded():
            return
        if (loss := self._silence.continues()) is not None:
            self._outcome.lose(loss)

    def _hear(self, answer: dict[str, Any]) -> None:
        self.answer = answer
        self._silence.ended()
        self.header = self.header or tuple(answer.get("header", ()))
        fresh = answer.get("messages", ())
        self._seen = len(fresh) + (self._seen if answer["start"] == self._start else 0)
        self._start = answer["start"]
        self._messages += fresh
        self.plain_warning = self.plain_warning or answer.get("plain_warning")
        self.status = answer.get("status", self.status)
        if answer["over"]:
            self._outcome.end(answer["error"])
        elif self._stopping and answer["start"] != self._stop_heard_by:
            self._send_stop()

    def stop(self, *, give_up: bool) -> None:
        """A restarted coordinator is asked again to stop, but not to give up its save, which may succeed."""
        self._stopping = True
        if not self._outcome.over:
            self._send_stop(give_up=give_up)

    def _send_stop(self, *, give_up: bool = False) -> None:
        self._stop_heard_by = self._start
        self._processes.coordinator.ask.remote("stop", give_up=give_up)
