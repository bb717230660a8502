"""Passes connections on, from a port of loopback or a socket's path to another, for a command or
for ever: `relay.py FROM TO [COMMAND...]`. It is how one network namespace reaches another.
"""

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import threading


def listen(at):
    if at.isdigit():
        return socket.create_server(("127.0.0.1", int(at)))
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(at)
    listening.listen()
    return listening


def connect(to):
    if to.isdigit():
        return socket.create_connection(("127.0.0.1", int(to)))
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(to)
    return connection


def copy(source, target):
    with contextlib.suppress(OSError):
        with source.makefile("rb", 0) as read, target.makefile("wb", 0) as write:
            shutil.copyfileobj(read, write)
        target.shutdown(socket.SHUT_WR)


def serve(listening, to):
    while True:
        ours = listening.accept()[0]
        try:
            theirs = connect(to)
        except OSError:  # nobody listens any more
            ours.close()
            continue
        for pair in ((ours, theirs), (theirs, ours)):
            threading.Thread(target=copy, args=pair, daemon=True).start()


if __name__ == "__main__":
    begin, end, *command = sys.argv[1:]
    serving = threading.Thread(target=serve, args=(listen(begin), end), daemon=True)
    serving.start()
    if command:
        code = subprocess.call(command)
        sys.stdout.flush()
        os._exit(code)
    serving.join()
