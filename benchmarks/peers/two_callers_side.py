"""Two callers, as two workers would be: each with its own dense copy and one thread, on the same rows."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
from gearshift_side import Gearshift
from numpy.typing import NDArray
from protocol import Task, serve


class TwoCallers:
    def __init__(self, task: Task) -> None:
        first = Gearshift(task)
        self.callers = (first, Gearshift(task, first.learner.server.stores))
        self.threads = ThreadPoolExecutor(len(self.callers))

    def train(self, numbers: list[int]) -> float:
        count = len(self.callers)
        parts = [numbers[i::count] for i in range(count)]
        losses = self.threads.map(lambda caller, part: caller.train(part), self.callers, parts)
        return sum(losses) / count

    def predict(self, number: int) -> NDArray[np.float32]:
        return self.callers[0].predict(number)


if __name__ == "__main__":
    serve(TwoCallers)
