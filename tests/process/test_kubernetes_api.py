"""What is said of an API server that breaks off, whose place here a plain server takes."""

import json
import socket
import struct
import threading
from types import SimpleNamespace

import pytest

from phalanx._schedulers.kubernetes.apps import logs
from phalanx._schedulers.kubernetes.api.cluster import Cluster
from phalanx.errors import SchedulerError, SchedulerUnreachable

HEAD = b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n"
NO_LINGERING = struct.pack("ii", 1, 0)


@pytest.fixture
def api(tmp_path, monkeypatch):
    """A server that answers every request with these bytes, and then lets go."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve(answer, resets):
        connection, _ = listener.accept()
        with connection:
            connection.recv(1 << 16)
            connection.sendall(answer)
            if resets:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, NO_LINGERING)

    server = f"http://127.0.0.1:{listener.getsockname()[1]}"
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "test", "cluster": {"server": server}}],
        "users": [{"name": "test", "user": {}}],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
        "current-context": "test",
    }
    (tmp_path / "kubeconfig").write_text(json.dumps(config))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
    started = []

    def start(answer, *, resets=False):
        started.append(threading.Thread(target=serve, args=(answer, resets)))
        started[-1].start()

    yield start
    for thread in started:
        thread.join()
    listener.close()


@pytest.mark.parametrize(
    ("answer", "resets", "said"),
    [
        (b"", False, "(Remote end closed connection without response)"),
        (b"", True, "([Errno 104] Connection reset by peer)"),
        (HEAD + b"{", False, "(IncompleteRead(1 bytes read, 99 more expected))"),
        (b"hello\r\n\r\n", False, "(hello)"),
    ],
    ids=["closes", "resets", "breaks off", "is no web server"],
)
def test_an_answer_that_does_not_come_is_told_in_words(api, answer, resets, said):
    api(answer, resets=resets)
    with Cluster() as cluster, pytest.raises(SchedulerUnreachable) as caught:
        cluster.list("jobs")
    assert str(caught.value).startswith("cannot list jobs: the API server http://127.0.0.1:")
    assert f"does not answer {said}. Look at it: kubectl cluster-info" in str(caught.value)


@pytest.mark.parametrize("state", ["is waiting to start: ContainerCreating", "is terminated"])
def test_a_container_that_never_was_has_no_log(api, state):
    """Nor is that an error: its pod may have been deleted before."""
    api(_refusal(f'container "main" in pod "p" {state}'))
    with Cluster() as cluster:
        assert not list(_read_log(cluster))


def test_a_log_that_cannot_be_read_is_an_error(api):
    api(_refusal("the disk of the node is broken"))
    with Cluster() as cluster, pytest.raises(SchedulerError, match="the disk of the node"):
        list(_read_log(cluster))


def _refusal(message):
    body = json.dumps({"kind": "Status", "status": "Failure", "message": message, "code": 400})
    head = f"HTTP/1.1 400 Bad Request\r\nContent-Length: {len(body)}\r\n\r\n"
    return (head + body).encode()


def _read_log(cluster):
    return logs._lines(cluster, SimpleNamespace(name="p"), logs._Position(), None, follow=False)
