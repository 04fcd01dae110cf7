"""Ranks on hosts, devices and processors."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hal.core.errors import InvalidCall
from stack.launch.address import listen_at, own_address, reached_at
from stack.launch.hosts import read_hosts
from stack.launch.seats import Host, Seat, device_names, seats, share

HOSTS = st.lists(st.builds(Host, st.just("h"), st.integers(1, 4), st.just(("d:0", "d:1", "d:2"))))


@given(HOSTS.filter(bool), st.data())
def test_ranks_fill_the_hosts_one_after_the_other_and_take_their_devices_in_turn(hosts, data):
    size = data.draw(st.integers(1, sum(host.slots for host in hosts)))
    found = seats(hosts, size)
    assert [seat.rank for seat in found] == list(range(size))
    assert [seat.host for seat in found] == sorted(seat.host for seat in found)
    for number, host in enumerate(hosts):
        here = [seat for seat in found if seat.host == number]
        assert len(here) <= host.slots
        assert [seat.local_rank for seat in here] == list(range(len(here)))
        assert all(seat.local_size == len(here) for seat in here)
        assert [seat.device for seat in here] == ["d:0", "d:1", "d:2", "d:0"][: len(here)]


def test_more_ranks_than_slots_are_refused():
    hosts = (Host("a", 2, ("cpu:0",)), Host("", 1, ("cpu:0",)))
    with pytest.raises(InvalidCall, match=r"4 ranks .* have 3 slots: a: 2, this host: 1"):
        seats(hosts, 4)
    with pytest.raises(InvalidCall, match="0 ranks are asked for"):
        seats(hosts, 0)


@given(st.sets(st.integers(0, 500), min_size=1), st.integers(1, 40))
def test_processors_are_shared_out_evenly(cpus, ranks):
    shares = [share(sorted(cpus), rank, ranks) for rank in range(ranks)]
    assert all(shares)
    assert frozenset().union(*shares) == cpus or len(cpus) < ranks
    if len(cpus) >= ranks:
        assert sum(map(len, shares)) == len(cpus)
        assert max(map(len, shares)) - min(map(len, shares)) <= 1
    else:
        times = [sum(cpu in mine for mine in shares) for cpu in cpus]
        assert max(times) - min(times) <= 1


def test_device_names():
    assert device_names("cpu:0, opencl:12") == ("cpu:0", "opencl:12")
    for wrong in ("cpu", "cpu:", ":0", "cpu:0,,cpu:1", "cpu:x", ""):
        with pytest.raises(InvalidCall, match="is not a device name"):
            device_names(wrong)


def hosts_of(folder, text, devices=("cpu:0",)):
    path = Path(folder) / "hosts"
    path.write_text(text)
    return read_hosts(path, devices)


def test_a_hosts_file(tmp_path):
    text = "# all\n\nnode1 slots=2 devices=x:0,x:1\n  me@node2   # one slot\n10.0.0.3 slots=3\n"
    assert hosts_of(tmp_path, text) == (
        Host("node1", 2, ("x:0", "x:1")),
        Host("me@node2", 1, ("cpu:0",)),
        Host("10.0.0.3", 3, ("cpu:0",)),
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "names no host"),
        ("a\na slots=2", "names a twice"),
        ("slots=2", "line 1: 'slots=2' is not a host's name"),
        ("-oProxyCommand=x", "is not a host's name"),
        ("a\nb slot=2", "line 2: 'slot=2' is not slots=N"),
        ("a slots=0", "slots=0 is not a number from 1"),
        ("a slots=1 slots=2", "'slots=2' is not .* once each"),
        ("a slots=", "line 1: 'slots=' has no number; write slots=4"),
        ("a slots", "line 1: 'slots' has no number"),
        ("a slots=-2", "slots=-2 is not a number from 1"),
        ("a slots=two", "slots=two is not a number from 1"),
        ("a\nb devices=cpu", "line 2: 'cpu' in 'cpu' is not a device name"),
    ],
)
def test_a_wrong_hosts_file_is_named_by_line(tmp_path, text, said):
    with pytest.raises(InvalidCall, match=said):
        hosts_of(tmp_path, text)


def test_a_host_without_devices_is_refused(tmp_path):
    with pytest.raises(InvalidCall, match="a has no devices; add devices=NAME or give --devices"):
        hosts_of(tmp_path, "a", ())


def test_a_hosts_file_that_is_not_there(tmp_path):
    with pytest.raises(InvalidCall, match="cannot be read"):
        read_hosts(tmp_path / "none", ())


def test_addresses():
    assert listen_at("") == ("127.0.0.1", 0)
    assert listen_at("localhost") == ("127.0.0.1", 0)
    assert listen_at("10.0.0.1:4711") == ("10.0.0.1", 4711)
    assert listen_at("[fe80::1]") == ("fe80::1", 0)
    with pytest.raises(InvalidCall, match=r"--address no\.such\.host is not known here"):
        listen_at("no.such.host")
    for wrong in ("127.0.0.1:1:2", "fe80::1:80", "[]:80", "h:99999"):
        with pytest.raises(InvalidCall, match="is not an address"):
            listen_at(wrong)
    assert reached_at("", 5) == "127.0.0.1:5"
    assert reached_at("node0:5", 5) == "node0:5"
    assert reached_at("[fe80::1]:5", 5) == "[fe80::1]:5"
    assert own_address(()) == ""
    assert own_address((Host("me@127.0.0.1", 1, ("cpu:0",)),)) == "127.0.0.1"
    with pytest.raises(InvalidCall, match="say it by --address HOST"):
        own_address((Host("x" * 64, 1, ("cpu:0",)),))


def test_a_seat_is_a_value():
    assert seats((Host("", 1, ("cpu:0",)),), 1) == (Seat(0, 0, 0, 1, "cpu:0"),)
