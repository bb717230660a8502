"""A flood at a port that is said to be a store's; run as a program, with nothing but Python.

Arguments: the user to be, or -; address, port, kinds of attack. Says "attacking" once every kind has made connections,
and goes on until its stdin ends.
"""

import os
import selectors
import socket
import struct
import sys
import threading
import time

VALIDATE = struct.pack("=BI", 0, 0x3C85F7CE)
PING = struct.pack("=BI", 13, 7)
HELD = 200


def string(text):
    return struct.pack("=Q", len(text)) + text


def set_key(number):
    return struct.pack("=B", 1) + string(b"stranger-%d" % number) + string(b"x" * 100)


WAIT = struct.pack("=BQ", 6, 1) + string(b"never")
"""For a key that nobody will set."""
FIRST = {
    "idle": b"",
    "half": VALIDATE + struct.pack("=BQ", 1, 1 << 20) + b"half of a key",
    "valid": VALIDATE + PING + set_key(0),
    "waiting": VALIDATE + WAIT,
    "greeting": b"PHXR\x01" + bytes(32),
}


class Holding:
    """Many connections that stay, each begun anew when it is closed."""

    def __init__(self, place, kind):
        self.place, self.kind = place, kind
        self.opened = 0
        self._selector = selectors.DefaultSelector()

    def run(self):
        live = 0
        while True:
            if live < HELD:
                live += self._open()
            for key, events in self._selector.select(0.02 if live >= HELD else 0):
                live -= self._heed(key.fileobj, events)

    def _open(self):
        connection = socket.socket(socket.AF_INET6 if ":" in self.place[0] else socket.AF_INET)
        try:
            connection.settimeout(2)
            connection.connect(self.place)
            connection.setblocking(False)
            connection.send(FIRST[self.kind])
        except OSError:
            connection.close()
            time.sleep(0.001)
            return 0
        finally:
            self.opened += 1
            time.sleep(0.0005)  # those that are attacked run on the same processors
        self._selector.register(connection, selectors.EVENT_READ)
        return 1

    def _heed(self, connection, events):
        try:
            if connection.recv(1 << 12):
                if self.kind == "valid":
                    time.sleep(0.0005)
                    connection.send(PING + set_key(self.opened))
                return 0
        except BlockingIOError:
            return 0
        except OSError:
            pass
        self._selector.unregister(connection)
        connection.close()
        return 1


class Storm:
    """Connections that are closed as soon as they are made."""

    def __init__(self, place, _):
        self.place, self.opened = place, 0

    def run(self):
        while True:
            connection = socket.socket(socket.AF_INET6 if ":" in self.place[0] else socket.AF_INET)
            try:
                connection.settimeout(2)
                connection.connect(self.place)
                connection.send(VALIDATE)
            except OSError:
                time.sleep(0.001)
            connection.close()
            self.opened += 1
            time.sleep(0.0002)


def main():
    user, address, port, *kinds = sys.argv[1:]
    if user != "-":
        os.setgroups([])
        os.setresgid(*[int(user)] * 3)
        os.setresuid(*[int(user)] * 3)
    os.nice(5)
    attacks = [
        (Storm if kind == "storm" else Holding)((address, int(port)), kind) for kind in kinds
    ]
    for attack in attacks:
        threading.Thread(target=attack.run, daemon=True).start()
    while any(attack.opened < HELD for attack in attacks):
        time.sleep(0.01)
    print("attacking", flush=True)
    sys.stdin.read()
    print(*(f"{kind}={attack.opened}" for kind, attack in zip(kinds, attacks)), flush=True)


if __name__ == "__main__":
    main()
