"""The protocol's messages over ZeroMQ; the only package that imports zmq.

    limits               how large a message may be
    frames               the arrays of a message as frames
    message_layout       how a message is written and read, derived from its dataclass: scalar_fields, array_fields
    codec                message <-> frames, and which role may send which message
    keys                 CURVE keys, their owners, and the authentication of peers
    address              where a process may listen
    shared_memory        large frames through shared memory, inside a host
    refused_connections  connection attempts that were refused, counted by reason
    endpoint             the sockets of one process: connections, listener, sockets, endpoint_counts
    driver               the loop that runs a role

No pickle. A message may be lost (a full queue drops it and counts it); the roles resend what must arrive.
"""
