"""The roles' messages over ZeroMQ: the only package that imports zmq.

    limits.py    how large a message may be
    frames.py    numbers, text and arrays in the frames of a message
    message_types.py     each kind of message, written and read
    codec.py     message <-> frames, and who may say what
    keys.py      CURVE keys, who has which, and the gate that lets nobody else in
    address.py   where a process may listen
    shared_memory.py    large frames through shared memory, inside a host
    refused_connections.py      who came and did not get in
    endpoint.py  the sockets of one process
    driver.py    the loop that runs a role

No pickle. Messages may be lost (a full queue drops them, and counts them): the roles say again what must arrive.
"""
