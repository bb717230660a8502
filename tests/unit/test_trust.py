"""The proof of a shared secret, and the records that follow it."""

import asyncio
import os
import pwd
import socket
import stat

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx._channel import tokens, trust
from phalanx._rendezvous.tcp.tokens import find_token
from phalanx.errors import ConfigError, WireError

KEY = trust.key_of("a token of many characters", "tests")
OTHER = trust.key_of("another token of many characters", "tests")


async def _admit(end, key):
    return await trust.admit(end, key)


def sessions():
    """Both ends of a connection whose sides have proved themselves."""

    async def run():
        ends = socket.socketpair()
        for end in ends:
            end.setblocking(False)
        try:
            return await asyncio.gather(trust.prove(ends[0], KEY), _admit(ends[1], KEY))
        finally:
            for end in ends:
                end.close()

    return asyncio.run(run())


@given(st.lists(st.binary(max_size=200), max_size=5), st.integers(1, 50))
def test_records_arrive_in_order_however_they_are_cut(records, step):
    """Both ways."""
    for one, other in (sessions(), sessions()[::-1]):
        data = b"".join(one.seal(record) for record in records)
        found = []
        for at in range(0, len(data), step):
            found += other.open(data[at : at + step])
        assert found == records


async def _admit_or_close(end, key):
    """As a listener does."""
    try:
        return await _admit(end, key)
    except trust.NotTrusted as error:
        end.close()
        return error


@pytest.mark.parametrize(("opener", "listener"), [(KEY, OTHER), (OTHER, KEY), (KEY, b"")])
def test_who_does_not_have_the_secret_learns_nothing(opener, listener):
    """Neither side accepts; the opener has seen a random number and no proof."""

    async def run():
        one, other = socket.socketpair()
        for end in (one, other):
            end.setblocking(False)
        admitting = asyncio.create_task(_admit_or_close(other, listener))
        with pytest.raises(trust.NotTrusted, match="does not accept our token"):
            await trust.prove(one, opener)
        assert isinstance(await admitting, trust.NotTrusted)
        one.close()

    asyncio.run(run())


def test_a_listener_without_the_secret_is_not_believed():
    """It cannot give the proof back, also not by sending ours."""

    async def run():
        one, other = socket.socketpair()
        for end in (one, other):
            end.setblocking(False)
        loop = asyncio.get_running_loop()

        async def reflect():
            await loop.sock_recv(other, 4096)
            await loop.sock_sendall(other, os.urandom(32))
            await loop.sock_sendall(other, await loop.sock_recv(other, 4096))

        task = asyncio.create_task(reflect())
        with pytest.raises(trust.NotTrusted, match="could not prove"):
            await trust.prove(one, KEY)
        await task
        one.close()
        other.close()

    asyncio.run(run())


@pytest.mark.parametrize(
    "attack",
    ["repeat", "reflect", "swap", "drop", "change a byte", "change the length", "of another"],
)
def test_a_record_that_was_tampered_with_ends_the_connection(attack):
    """Whoever is between the two can cut the connection, and nothing else."""
    one, other = sessions()
    first, second = one.seal(b"first"), one.seal(b"second")
    match attack:
        case "repeat":
            data = first + first
        case "reflect":
            data = other.seal(b"first")
        case "swap":
            data = second + first
        case "drop":
            data = second
        case "change a byte":
            data = first[:-1] + b"T"
        case "change the length":
            data = (4).to_bytes(4, "big") + first[4:]
        case "of another":
            data = sessions()[0].seal(b"first")
    taken = []
    with pytest.raises(WireError):
        for at in range(len(data)):
            taken += other.open(data[at : at + 1])
        raise AssertionError(taken)
    assert taken in ([], [b"first"])


def test_a_long_record_is_refused_by_its_length_alone():
    """Nothing is kept for it."""
    _, other = sessions()
    with pytest.raises(WireError, match="over the limit"):
        other.open((1 << 30).to_bytes(4, "big") + bytes(32))


def test_a_token_is_read_from_a_file_that_only_the_user_can_read(tmp_path):
    """As ssh has it with keys."""
    path = tmp_path / "token"
    path.write_text("0123456789abcdef\n")
    path.chmod(0o640)
    with pytest.raises(ConfigError, match=f"chmod 600 {path}"):
        tokens.read_token(str(path))
    path.chmod(0o600)
    assert tokens.read_token(str(path)) == "0123456789abcdef"
    path.chmod(0o644)
    assert tokens.read_token(str(path), is_private=False) == "0123456789abcdef"
    path.chmod(0o622)
    with pytest.raises(ConfigError, match="accessible by others"):
        tokens.read_token(str(path), is_private=False)
    path.chmod(0o600)
    path.write_text("short")
    with pytest.raises(ConfigError, match="at least 16 characters"):
        tokens.read_token(str(path))
    with pytest.raises(ConfigError, match="No such file"):
        tokens.read_token(str(tmp_path / "none"))
    os.mkfifo(tmp_path / "pipe", 0o600)
    with pytest.raises(ConfigError, match="not a regular file"):
        tokens.read_token(str(tmp_path / "pipe"))
    with pytest.raises(ConfigError):
        tokens.read_token(str(tmp_path))


def test_the_users_own_token_is_made_once(tmp_path):
    """And is nobody else's to read."""
    path = tmp_path / "state" / "phalanx" / "loopback.token"
    first = tokens.own_token(str(path))
    assert len(first) == 64
    assert tokens.own_token(str(path)) == first
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [file.name for file in path.parent.iterdir()] == ["loopback.token"]
    assert tokens.own_token("/proc/none/token") is None


def test_a_token_is_not_looked_for_in_the_working_directory(tmp_path, monkeypatch):
    """Anyone may have made it: a relative path is none, as the XDG specification has it."""
    monkeypatch.chdir(tmp_path)
    environ = {"XDG_STATE_HOME": "here", "XDG_CONFIG_HOME": "here", "HOME": str(tmp_path / "home")}
    assert find_token(environ, None, local=True) is not None
    assert os.listdir(tmp_path) == ["home"]


@pytest.mark.parametrize("home", ["", "relative", None])
def test_without_a_home_in_the_environment_the_accounts_own_is_meant(home, tmp_path, monkeypatch):
    """As for the records of apps: neither the root directory nor the working directory."""
    account = pwd.struct_passwd(("me", "", os.getuid(), 0, "", str(tmp_path / "home"), ""))
    monkeypatch.setattr(pwd, "getpwuid", lambda _: account)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    environ = {} if home is None else {"HOME": home}
    token = find_token(environ, None, local=True)
    assert token == (tmp_path / "home/.local/state/phalanx/loopback.token").read_text()
    assert os.listdir(tmp_path) == ["home"]


def test_a_user_without_any_home_has_no_token_of_their_own(tmp_path, monkeypatch):
    """In a container, under a number that no account has: said as where none can be kept."""

    def unknown(_):
        raise KeyError

    monkeypatch.setattr(pwd, "getpwuid", unknown)
    assert find_token({"HOME": ""}, None, local=True) is None
    given = {"PHALANX_RDZV_TOKEN": "of sixteen characters"}
    assert find_token(given, None, local=True) == "of sixteen characters"
    shared = tmp_path / "phalanx" / "rendezvous.token"
    shared.parent.mkdir()
    shared.write_text("of sixteen characters")
    shared.chmod(0o600)
    given = {"HOME": "", "XDG_CONFIG_HOME": str(tmp_path)}
    assert find_token(given, None, local=False) == "of sixteen characters"


@pytest.mark.parametrize("target", ["nothing", "rendezvous.token"])
def test_a_shared_token_that_cannot_be_read_does_not_count_as_none(target, tmp_path):
    """Else whoever reaches the port could join, though the user has set one."""
    (tmp_path / "phalanx").mkdir()
    (tmp_path / "phalanx" / "rendezvous.token").symlink_to(target)
    with pytest.raises(ConfigError, match="cannot read token file"):
        find_token({"XDG_CONFIG_HOME": str(tmp_path)}, None, local=False)
