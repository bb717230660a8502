"""Where hosts meet, as people write it."""

import pytest

from phalanx._rendezvous.endpoints import DEFAULT_PORTS, parse_endpoint
from phalanx.errors import ConfigError
from phalanx.rendezvous import get_handler


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("", "localhost", None),
        (" node0 ", "node0", None),
        ("node0:1", "node0", 1),
        ("10.0.0.1:65535", "10.0.0.1", 65535),
        ("[::1]", "::1", None),
        ("[::1]:7", "::1", 7),
        ("[fe80::1%eth0]:7", "fe80::1%eth0", 7),
        ("fd00::5:29400", "fd00::5", 29400),
    ],
)
def test_an_endpoint_is_a_host_and_maybe_a_port(text, host, port):
    """Addresses of version 6 are best in brackets."""
    assert parse_endpoint(text) == (host, port)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a:b", "invalid port 'b'. Write a:29400."),
        ("a:65536", "invalid port '65536'"),
        ("a:", "invalid port ''"),
        (":1", "invalid host ''. Write HOST:PORT."),
        ("x://a:1", "invalid host 'x://a'"),
        ("a:b:1", "invalid host 'a:b'"),
    ],
)
def test_what_is_no_endpoint_is_refused(text, said):
    """With the part that is wrong."""
    with pytest.raises(ConfigError, match=f'rendezvous endpoint "{text}": {said}'):
        parse_endpoint(text)


@pytest.mark.parametrize("backend", ["static", "tcp", "c10d"])
def test_a_handler_has_the_usual_port(backend):
    """Unless another is given; an address alone has it as well, and nothing at all is any port."""
    usual = DEFAULT_PORTS[backend]
    for text, host, port in [
        ("node0", "node0", usual),
        ("::1", "::1", usual),
        ("fd00::5:1", "fd00::5:1", usual),
        ("node0:7", "node0", 7),
        ("", "localhost", 0),
    ]:
        place = get_handler(backend, text).endpoint
        assert (place.address, place.port) == (host, port)
