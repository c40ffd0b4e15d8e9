"""Authentication: CURVE key pairs, the register of public keys, and the check that rejects all other keys.

Each process creates its own pair; the secret key never leaves it. The code that starts the processes distributes their
`Contact`s, which contain nothing secret. A restarted process has a new key, and the old one is no longer valid.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import zmq
from zmq.utils import z85

from gearshift.engine.protocol.messages import To

GATE = "inproc://zeromq.zap.01"  # where libzmq sends authentication requests (ZeroMQ RFC 27)


@dataclass(frozen=True)
class Keys:
    public: str
    secret: bytes = field(repr=False)

    @classmethod
    def make(cls) -> Keys:
        public, secret = zmq.curve_keypair()
        return cls(public.decode(), secret)


@dataclass(frozen=True)
class Contact:
    """Where a process listens ("" if it does not) and its public key ("" inside a host)."""

    who: To
    boot: int  # of two contacts of one process, the higher boot is valid
    address: str = ""
    key: str = ""


class ContactRegister:
    """The newest contact of each process, and the owner of each key."""

    def __init__(self) -> None:
        self._newest: dict[To, Contact] = {}
        self._by_key: dict[str, To] = {}

    def learn(self, contact: Contact) -> bool:
        """Records a contact. Returns True if it is new."""
        known = self._newest.get(contact.who)
        if known is not None and known.boot >= contact.boot:
            return False
        if contact.key and self._by_key.get(contact.key, contact.who) != contact.who:
            raise ValueError(
                f"{contact.who} has the key of another process; every process must create its own"
            )
        if known is not None:
            self._by_key.pop(known.key, None)
        self._newest[contact.who] = contact
        if contact.key:
            self._by_key[contact.key] = contact.who
        return True

    def whose(self, key: str) -> To | None:
        return self._by_key.get(key)


class PeerAuthenticator:
    """Answers libzmq's authentication requests. An admitted key becomes the `User-Id` of its messages."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], register: ContactRegister) -> None:
        self.socket = context.socket(zmq.REP)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.bind(GATE)
        self._register = register

    def answer(self) -> None:
        version, request, _, _, _, mechanism, *credentials = self.socket.recv_multipart(zmq.NOBLOCK)
        key = ""
        if mechanism == b"CURVE" and len(credentials) == 1:
            key = z85.encode(credentials[0]).decode()
        if key and self._register.whose(key) is not None:
            answer = [b"200", b"", key.encode(), b""]
        else:
            answer = [b"400", b"unknown key", b"", b""]
        self.socket.send_multipart([version, request, *answer])
