"""The names of services, as programs in pods ask for them. Run as a script, where the API server is.

SERVICE.NAMESPACE.svc.cluster.local are the addresses of a service's pods, POD.SERVICE… that of one with
this host name. There is nothing that spreads connections, so services with an address of their own
give their pods' addresses as well. While the API server is away, what it said last holds.
"""

import json
import socket
import socketserver
import ssl
import struct
import sys
import urllib.error
import urllib.request

_ADDRESS, _IN = 1, 1
_NO_SUCH_NAME = 3


class _Names:
    def __init__(self, server, api_address, keys):
        self._server = server
        self._api_address = api_address
        context = ssl.create_default_context(cafile=f"{keys}/ca.crt")
        context.load_cert_chain(f"{keys}/admin.crt", f"{keys}/admin.key")
        self._opener = urllib.request.build_opener(
            urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context)
        )
        self._last = {}

    def addresses(self, name):
        """Those of a name; None if there is no such name."""
        match name.lower().split("."):
            case ["kubernetes", "default", "svc", "cluster", "local"]:
                return [self._api_address]
            case [*pod, service, namespace, "svc", "cluster", "local"] if len(pod) < 2:
                endpoints = self._endpoints(namespace, service)
            case _:
                return None
        if endpoints is None:
            return None
        ready = [
            a for subset in endpoints.get("subsets") or () for a in subset.get("addresses") or ()
        ]
        if not pod:
            return [address["ip"] for address in ready]
        return [address["ip"] for address in ready if address.get("hostname") == pod[0]] or None

    def _endpoints(self, namespace, service):
        url = f"{self._server}/api/v1/namespaces/{namespace}/endpoints/{service}"
        try:
            with self._opener.open(url, timeout=2) as answer:
                self._last[url] = json.load(answer)
        except urllib.error.HTTPError as error:
            if error.code == 404:
                self._last.pop(url, None)
        except OSError:
            pass  # the API server is away
        return self._last.get(url)


def _answer(names, query):
    labels, at = [], 12
    while size := query[at]:
        labels.append(query[at + 1 : at + 1 + size].decode("latin1"))
        at += 1 + size
    question = query[12 : at + 5]
    kind, _ = struct.unpack("!HH", question[-4:])
    found = names.addresses(".".join(labels))
    answers = (found or []) if kind == _ADDRESS else []
    # An answer with authority, to a question that may have wished for recursion.
    flags = 0x8580 | (_NO_SUCH_NAME if found is None else 0)
    head = query[:2] + struct.pack("!5H", flags, 1, len(answers), 0, 0)
    pointer = struct.pack("!HHHIH", 0xC00C, _ADDRESS, _IN, 0, 4)
    return head + question + b"".join(pointer + socket.inet_aton(ip) for ip in answers)


class _Handler(socketserver.BaseRequestHandler):
    def handle(self):
        query, out = self.request
        out.sendto(_answer(self.server.names, query), self.client_address)


class _Server(socketserver.ThreadingUDPServer):
    daemon_threads = True
    max_packet_size = 4096

    def __init__(self, address, names):
        super().__init__((address, 53), _Handler)
        self.names = names


if __name__ == "__main__":
    _, _own_address, _api_server, _api_address, _keys = sys.argv
    _Server(_own_address, _Names(_api_server, _api_address, _keys)).serve_forever()
