"""How a device binds its hooks, and what it refuses."""

import copy
import dataclasses
import multiprocessing
import os
import pickle
import select
from concurrent.futures import ProcessPoolExecutor

import pytest
from hal_plugin_bytes.device import BytesDevice

import hal
from hal.core.description import Feature
from hal.core.device import Device
from hal.core.errors import InvalidCall, PluginError, StaleHandle, Unsupported
from hal.core.spec import MANDATORY_DEVICE, OPTIONAL, DeviceSpec, hookimpl, hooks
from hal.core.values import AllocOptions, OpenOptions


def on_alloc_only(device):
    """A wrapper on one hook."""

    class OnAlloc:
        @hookimpl(wrapper=True)
        def alloc(self, nbytes, options):
            return (yield)

    return OnAlloc()


def test_without_wrappers_each_hook_is_the_implementations_own_method(implementation):
    device = Device(implementation, "bytes:0")
    own = [*MANDATORY_DEVICE, "map", "record", "replay", "timestamps", "reset"]
    for hook in set(own) - {"close"}:
        assert getattr(device, hook) == getattr(implementation, hook)
        assert getattr(device, hook).__self__ is implementation


def test_a_wrapper_puts_pluggy_only_on_the_hook_that_it_wraps(implementation):
    device = Device(implementation, "bytes:0", [on_alloc_only])
    assert device.launch.__self__ is implementation
    assert device.alloc != implementation.alloc
    assert device.alloc(3, AllocOptions()).nbytes == 3
    assert device.alloc(nbytes=4, options=AllocOptions()).nbytes == 4


@pytest.mark.parametrize(
    ("args", "kwargs"), [((1,), {}), ((1, 2, 3), {}), ((1, 2), {"nbytes": 1}), ((1,), {"size": 2})]
)
def test_a_wrapped_hook_refuses_wrong_arguments_like_a_function(implementation, args, kwargs):
    device = Device(implementation, "bytes:0", [on_alloc_only])
    with pytest.raises(TypeError):
        device.alloc(*args, **kwargs)


def test_every_hook_of_the_contract_is_an_attribute(implementation):
    device = Device(implementation, "bytes:0")
    assert all(callable(getattr(device, hook)) for hook in hooks(DeviceSpec))


def test_wrappers_run_from_the_first_outside_to_the_last_inside(implementation):
    calls = []

    def marking(mark):
        class Marks:
            @hookimpl(wrapper=True)
            def health(self):
                calls.append(f"{mark} in")
                result = yield
                calls.append(f"{mark} out")
                return result

        return lambda device: Marks()

    Device(implementation, "bytes:0", [marking("outer"), marking("inner")]).health()
    assert calls == ["outer in", "inner in", "inner out", "outer out"]


def test_a_wrapper_can_fail_a_call_without_reaching_the_device(implementation):
    class Refuses:
        @hookimpl(wrapper=True)
        def reset(self):
            raise PluginError("injected")
            yield

    device = Device(implementation, "bytes:0", [lambda device: Refuses()])
    with pytest.raises(PluginError, match="injected"):
        device.reset()
    assert implementation.epoch == 0


def test_a_wrapper_that_would_replace_the_implementation_is_refused(implementation):
    class NotAWrapper:
        @hookimpl
        def health(self):
            return None

    with pytest.raises(InvalidCall, match=r"NotAWrapper\.health is not a wrapper"):
        Device(implementation, "bytes:0", [lambda device: NotAWrapper()])


@pytest.mark.parametrize("hook", sorted(OPTIONAL))
def test_an_undeclared_hook_raises_unsupported_also_when_it_is_implemented(hook):
    device = Device(BytesDevice(features=()), "bytes:0")
    with pytest.raises(Unsupported, match=f"'{OPTIONAL[hook].value}'") as caught:
        getattr(device, hook)(1, 2, 3)
    assert "describe" in caught.value.next_step


def test_a_declared_feature_needs_its_hooks():
    with pytest.raises(PluginError, match="import_host"):
        Device(BytesDevice(features=[Feature.IMPORT_HOST]), "bytes:0")


def test_a_missing_mandatory_hook_is_named():
    class Lacking(BytesDevice):
        launch = None

    with pytest.raises(PluginError, match=r"lacks the hooks launch of DeviceSpec"):
        Device(Lacking(), "bytes:0")


def test_a_hook_that_the_contract_does_not_know_is_named():
    class Extra(BytesDevice):
        @hookimpl
        def warp(self):
            pass

    with pytest.raises(PluginError, match="warp"):
        Device(Extra(), "bytes:0")


def test_a_parameter_that_the_contract_does_not_know_is_named():
    class Extra(BytesDevice):
        @hookimpl
        def health(self, verbose):
            pass

    with pytest.raises(PluginError, match="verbose"):
        Device(Extra(), "bytes:0")


def test_a_default_that_would_hide_an_argument_is_refused():
    class Defaults(BytesDevice):
        @hookimpl
        def wait(self, points, timeout_s=1.0, wait_all=True):
            return True

    with pytest.raises(PluginError, match=r"default for timeout_s, wait_all"):
        Device(Defaults(), "bytes:0")


def test_an_implementation_with_parameters_in_another_order_is_called_by_name():
    class Reordered(BytesDevice):
        @hookimpl
        def wait(self, wait_all, points):
            return wait_all, points

    assert Device(Reordered(), "bytes:0").wait([], 1.0, False) == (False, [])


def test_a_device_that_describes_itself_as_another_is_refused():
    with pytest.raises(PluginError, match="'bytes:1'"):
        Device(BytesDevice(1), "bytes:0")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"limits": {"queues": 1}}, "limits is {'queues': 1}; it must be a Limits"),
        ({"formats": ["python/1"]}, "formats is ['python/1']; it must be a tuple"),
        ({"features": frozenset(["map"])}, "item of features is 'map'; it must be a Feature"),
        ({"dtypes": {"f32": 0.0}}, "item of dtypes is 'f32'; it must be a DType"),
    ],
)
def test_a_description_with_a_wrong_type_is_refused_by_field(implementation, change, words):
    implementation.info = dataclasses.replace(implementation.info, **change)
    with pytest.raises(PluginError) as caught:
        Device(implementation, "bytes:0")
    assert words in str(caught.value)


def test_a_description_that_is_a_dict_is_refused(implementation):
    implementation.info = {"name": "bytes:0"}
    with pytest.raises(PluginError, match=r"bytes:0\.describe returned a dict"):
        Device(implementation, "bytes:0")


def test_close_ends_the_session_once(implementation):
    device = Device(implementation, "bytes:0")
    with device:
        pass
    device.close()
    assert implementation.closed == 1
    assert repr(device) == "<Device bytes:0 closed>"


@pytest.mark.parametrize("duplicate", [pickle.dumps, copy.copy, copy.deepcopy])
def test_a_device_cannot_be_pickled_or_copied(device, duplicate):
    with pytest.raises(InvalidCall, match="bytes:0 cannot be pickled"):
        duplicate(device)


def test_a_forked_child_cannot_use_its_parents_device(implementation):
    device = Device(implementation, "bytes:0", [on_alloc_only])
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            device.alloc(1, AllocOptions())
        except StaleHandle as error:
            os.write(writer, str(error).encode())
        device.close()
        os.write(writer, f" closed {implementation.closed}".encode())
        os._exit(0)
    ended, _, _ = select.select([os.pidfd_open(child)], [], [], 20)
    assert ended, "the child does not end"
    os.waitpid(child, os.WNOHANG)
    said = os.read(reader, 1000).decode()
    assert "opened by the parent" in said
    assert "closed 0" in said
    assert device.alloc(1, AllocOptions()).nbytes == 1


@pytest.mark.slow
def test_a_spawned_child_opens_the_device_for_itself():
    said = "__import__('hal').open('cpu:0').health().state.value"
    context = multiprocessing.get_context("spawn")
    with hal.open("cpu:0"), ProcessPoolExecutor(1, context) as pool:
        assert pool.submit(eval, said).result(timeout=60) == "ok"


def test_two_sessions_of_one_device_are_independent(registry):
    first, second = registry.open("bytes:0"), registry.open("bytes:0", options=OpenOptions())
    with pytest.raises(StaleHandle, match="another session"):
        second.free(first.alloc(1, AllocOptions()))
