"""The protocol's messages over ZeroMQ; the only package that imports zmq.

    limits               how large a message may be
    frames               numbers, text and arrays in the frames of a message
    message_types        each type of message: how it is written and read; replica_message_types: those of replicas
    codec                message <-> frames, and who may send what
    keys                 CURVE keys, who has which, and the authentication of peers
    address              where a process may listen
    shared_memory        large frames through shared memory, inside a host
    refused_connections  connection attempts that were refused, counted by reason
    endpoint             the sockets of one process
    driver               the loop that runs a role

No pickle. A message may be lost (a full queue drops it and counts it); the roles resend what must arrive.
"""
