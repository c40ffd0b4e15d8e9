"""The workers that have joined, as the coordinator knows them: a table of sessions. It sends and decides nothing.

A session begins when a worker joins with a boot and ends when the worker leaves or is declared lost. A lost boot may
not join again; the worker has to rejoin with a higher one.
"""

from __future__ import annotations

from dataclasses import dataclass

from gearshift.engine.protocol.messages import Assignment


@dataclass
class Session:
    """What the coordinator knows about one boot of a worker."""

    boot: int
    heard: float
    request: int = 0
    answer: Assignment | None = None  # the answer to that request
    dismissed: bool = False  # the worker leaves after its batch


class WorkerSessions:
    def __init__(self, limit: int) -> None:
        """Workers have numbers below `limit`; others are dismissed."""
        self.limit = limit
        self._here: dict[int, Session] = {}
        self._given_up: dict[int, int] = {}  # by worker: the last boot that was declared lost
        self._silent: list[tuple[int, int]] = []  # worker and boot

    def forget(self) -> None:
        """A new incarnation begins; every worker has to join again."""
        self._here, self._given_up = {}, {}

    def __getitem__(self, worker: int) -> Session:
        return self._here[worker]

    def __len__(self) -> int:
        return len(self._here)

    def get(self, worker: int) -> Session | None:
        return self._here.get(worker)

    def items(self) -> list[tuple[int, Session]]:
        """A copy: sessions may end while a caller iterates over them."""
        return list(self._here.items())

    @property
    def members(self) -> dict[int, int]:
        """Boots of the workers that have joined."""
        return {worker: session.boot for worker, session in self._here.items()}

    def open(self, worker: int, boot: int, now: float) -> None:
        self._here[worker] = Session(boot, now)

    def close(self, worker: int) -> None:
        del self._here[worker]

    def is_open(self, worker: int, session: Session) -> bool:
        """Whether the session still exists: ending one may break an all-reduce group, which can end others."""
        return self._here.get(worker) is session

    def give_up(self, worker: int) -> None:
        """This boot must not join again."""
        self._given_up[worker] = self._here[worker].boot

    def is_given_up(self, worker: int, boot: int) -> bool:
        return boot <= self._given_up.get(worker, 0)

    def must_leave(self, worker: int) -> bool:
        return worker >= self.limit or self._here[worker].dismissed

    def all_asking(self) -> dict[int, int] | None:
        """The boots of all workers; None if one of them is busy, has not asked yet, or is about to leave."""
        for worker, session in self._here.items():
            if self.must_leave(worker) or session.answer is not None or not session.request:
                return None
        return self.members

    def note_silent(self, worker: int) -> None:
        self._silent.append((worker, self._here[worker].boot))

    def take_silent(self) -> list[tuple[int, int]]:
        """Silent workers declared lost since the last call, with their boots: their processes must be ended."""
        silent, self._silent = self._silent, []
        return silent
