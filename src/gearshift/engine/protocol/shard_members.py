"""The shards as the coordinator knows them: the newest boot of each, the time of its last message, and which have
loaded.

In a new incarnation all shards load the newest snapshot; a `Load` is resent until each has answered. Boots and times
outlive incarnations.
"""

from __future__ import annotations

from collections.abc import Callable

from gearshift.engine.protocol.messages import Load, To

LOADING = (
    20  # a starting shard may be silent for this many times the patience; while it loads it sends heartbeats
)


class ShardMembers:
    def __init__(
        self, shards: int, patience: float, send: Callable[[To, Load], None], clock: Callable[[], float]
    ) -> None:
        self.count, self._patience, self._send, self._clock = shards, patience, send, clock
        self._boots = dict.fromkeys(range(shards), 0)  # the newest boot of each; 0: none yet
        self._heard = dict.fromkeys(range(shards), 0.0)  # the time of the last message of each
        self.loading = True  # from the start of an incarnation until its work begins
        self._loaded: set[int] = set()
        self._incarnation, self._snapshot = 0, ""

    # ---- loading ----

    def load(self, incarnation: int, snapshot: str) -> None:
        """A new incarnation begins: every shard must load this snapshot."""
        self._incarnation, self._snapshot = incarnation, snapshot
        self.loading, self._loaded = True, set()
        self._heard = dict.fromkeys(self._heard, self._clock())
        self.resend_load()

    def resend_load(self) -> None:
        for shard in self._boots:
            if shard not in self._loaded:
                self._send_load(shard)

    def take_loaded(self, shard: int, boot: int) -> bool:
        """A shard has loaded. Returns whether all have."""
        if boot >= self._boots[shard]:
            self._boots[shard] = boot
            self._loaded.add(shard)
        return len(self._loaded) == self.count

    def begin(self) -> None:
        """The work of the incarnation begins."""
        self.loading = False

    def _send_load(self, shard: int) -> None:
        if boot := self._boots[shard]:
            self._send(To("shard", shard), Load(self._incarnation, boot, self._snapshot))

    # ---- boots and silence ----

    def start(self, shard: int, boot: int) -> bool:
        """A shard with this boot has started. Returns whether an earlier boot that held state was lost."""
        if boot < self._boots[shard]:
            return False
        is_new, self._boots[shard] = boot > self._boots[shard], boot
        if not self.loading:
            return is_new
        self._loaded.discard(shard)
        self._send_load(shard)
        return False

    def is_new(self, shard: int, boot: int) -> bool:
        """Whether this boot differs from the one we know."""
        return boot > self._boots[shard]

    def boot_of(self, shard: int) -> int:
        """The newest known boot."""
        return self._boots[shard]

    def note_heard(self, shard: int) -> None:
        self._heard[shard] = self._clock()

    @property
    def patience(self) -> float:
        return LOADING * self._patience if self.loading else self._patience

    def take_silent(self) -> list[int]:
        """Shards that have been silent for too long; each is reported once per period of patience."""
        now = self._clock()
        silent = [shard for shard, heard in self._heard.items() if now - heard > self.patience]
        self._heard |= dict.fromkeys(silent, now)
        return silent
