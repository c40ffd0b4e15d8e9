"""A worker's side of all-reduce groups: a torch.distributed process group for each, and the sum that it computes.

The process group is a separate object, not torch's default one, and lives as long as the all-reduce group. Members find
each other through a file in a shared folder. If anything goes wrong (a peer dies or is late, or a connection breaks),
the group is abandoned and the coordinator is notified; it forms another. gloo neither encrypts nor authenticates:
inside a machine it listens on the loopback address, between machines it is used only where the network is trusted.
"""

from __future__ import annotations

from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import FileStore

from gearshift.engine.protocol.all_reduce import GroupRank
from gearshift.optim.spread import SharedSums


class AllReduceError(Exception):
    """The reason why there is no sum."""


class AllReduceMember:
    def __init__(self, folder: Path, host: str, size: int, patience: float, *, spread: bool = False) -> None:
        """Gradients of `size` numbers are summed; members wait for each other for `patience` seconds.

        `spread`: their variance is computed too, from additional numbers in the same vector.
        """
        self._folder, self._host, self._timeout = folder, host, timedelta(seconds=patience)
        self._size, self._shared = size, SharedSums(size) if spread else None
        # The last element is the number of examples, which is 0 for a gradient that cannot be used.
        self._values = self._shared.packed if self._shared is not None else torch.zeros(size + 1)
        self._group: Any = None  # torch's stubs lack gloo's type
        self._file: Path | None = None  # the folder in which members find each other
        self._of = (0, 0)  # incarnation and number of the group

    @property
    def sum_P(self) -> Tensor:
        """The newest sum."""
        return self._values[: self._size]

    @property
    def variance_P(self) -> Tensor | None:
        """The variance of the gradients in the newest sum, if it is computed."""
        return None if self._shared is None else self._shared.variance

    def stay_in(self, incarnation: int, group: int) -> None:
        """Leaves the current group unless the next lease is in it, so that its members do not wait for us."""
        if self._of != (incarnation, group):
            self.close()
            self._of = incarnation, group

    def reduce(self, place: GroupRank, dense: Tensor, examples: float) -> None:
        """Computes the sum of all members in `sum_P`, bit for bit the same on each. Raises if there is none.

        0 examples: this gradient is unusable.
        """
        try:
            if self._group is None:
                self._connect(place)
                # Each member of a group has taken part in all of its sums, so all have the same shift.
                if self._shared is not None:
                    self._add_up(self._shared.propose(dense, examples if place.carries else 0.0))
            self._fill(dense, examples)
            self._add_up(self._values)
        except RuntimeError as error:
            self.close()
            raise AllReduceError(str(error).partition("\n")[0].rpartition("] ")[2][:200]) from error
        if self._file is not None:  # all have met
            self._file.unlink(missing_ok=True)
            self._file = None
        if not torch.isfinite(self._values.sum()):
            raise AllReduceError("a gradient that cannot be used")
        if self._shared is not None:
            self._shared.settle(place.size)

    def _fill(self, dense: Tensor, examples: float) -> None:
        self._values.zero_()
        if examples <= 0:
            self._values[-1] = torch.nan
        elif self._shared is not None:
            self._shared.add(dense, examples)
        else:
            self._values[:-1], self._values[-1] = dense, examples

    def _add_up(self, values: Tensor) -> None:
        self._group.allreduce([values]).wait()

    def _connect(self, place: GroupRank) -> None:
        self._file = self._folder / f"ring-{self._of[0]}-{self._of[1]}"
        gloo: Any = dist.ProcessGroupGloo
        options = gloo._Options()
        options._timeout = self._timeout
        options._threads = 1
        options._devices = [gloo.create_device(hostname=self._host)]
        store = FileStore(str(self._file), place.size)
        store.set_timeout(self._timeout)
        self._group = gloo(store, place.rank, place.size, options)

    def close(self) -> None:
        self._group = None
        if self._file is not None:
            with suppress(OSError):
                self._file.unlink(missing_ok=True)
            self._file = None
