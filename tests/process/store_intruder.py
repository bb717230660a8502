"""One who asks torch's store for something, with nothing but Python; run as a program.

Arguments: the user to be, address, port. For each line of stdin it tries everything once, and prints what was answered.
"""

import encodings.idna  # noqa: F401 another user may not read where it is
import os
import socket
import struct
import sys

VALIDATE = struct.pack("=BI", 0, 0x3C85F7CE)
KEY = b"/intruder"


def string(text):
    return struct.pack("=Q", len(text)) + text


QUERIES = {
    "ping": struct.pack("=BI", 13, 7),
    "set": struct.pack("=B", 1) + string(KEY) + string(b"x") + struct.pack("=BI", 13, 7),
    "get": struct.pack("=B", 3) + string(b"/phalanx"),
    "delete": struct.pack("=B", 8) + string(b"/phalanx"),
    "wait": struct.pack("=BQ", 6, 1) + string(b"/phalanx"),
}


def ask(place, query):
    """What comes back; nothing where the connection is closed."""
    with socket.create_connection(place, timeout=30) as connection:
        try:
            connection.sendall(VALIDATE + query)
            return connection.recv(100)
        except ConnectionError:
            return b""


def leave_behind(place, query):
    """Be gone before anybody has looked."""
    with socket.create_connection(place, timeout=30) as connection:
        connection.sendall(VALIDATE + query)


def main():
    user, address, port = sys.argv[1:]
    os.setgroups([])
    os.setresgid(*[int(user)] * 3)
    os.setresuid(*[int(user)] * 3)
    place = address, int(port)
    for _ in sys.stdin:
        answers = {name: ask(place, query) for name, query in QUERIES.items()}
        for _ in range(20):
            leave_behind(place, QUERIES["set"])
            leave_behind(place, QUERIES["delete"])
        print({name: answer for name, answer in answers.items() if answer}, flush=True)


if __name__ == "__main__":
    main()
