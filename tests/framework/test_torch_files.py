"""PyTorch's files, and anyone's safetensors, are read; what a pickle would run is refused."""

import os
import zipfile
from collections import OrderedDict

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

import stack.framework as ht
from stack.framework import nn


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.bool, torch.uint8]
)
def test_tensors_of_all_types_and_strides(dtype, tmp_path):
    whole = (torch.arange(24).reshape(4, 6) % 5).to(dtype)
    tree = {"t": whole, "part": whole[1:, ::2].t(), "scalar": whole[2, 3], "empty": whole[:0]}
    torch.save(tree, tmp_path / "x.pt")
    found = ht.load(tmp_path / "x.pt", map_location="cpu:0")
    for name, value in tree.items():
        assert found[name].shape == tuple(value.shape)
        assert found[name].float().tolist() == value.float().tolist()


def test_a_checkpoint_of_torch_goes_on_here(tmp_path):
    theirs = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
    optimizer = torch.optim.Adam(theirs.parameters())
    theirs(torch.ones(4, 3)).sum().backward()
    optimizer.step()
    state = {"model": theirs.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 3}
    torch.save(state, tmp_path / "x.pt")
    ours = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    adam = ht.optim.Adam(ours.parameters())
    found = ht.load(tmp_path / "x.pt")
    ours.load_state_dict(found["model"])
    adam.load_state_dict(found["optimizer"])
    np.testing.assert_array_equal(ours[0].weight.numpy(), theirs[0].weight.detach().numpy())
    assert (found["epoch"], adam.state[ours[0].bias]["step"].item()) == (3, 1)


class Evil:
    def __reduce__(self):
        return os.system, ("true",)


def test_code_in_a_file_is_refused(tmp_path):
    torch.save({"x": Evil()}, tmp_path / "x.pt")
    with pytest.raises(ht.CheckpointError, match=r"x.pt names posix.system, which is neither"):
        ht.load(tmp_path / "x.pt", weights_only=False)


def test_a_tensor_beyond_its_storage_is_refused(tmp_path):
    torch.save(OrderedDict(x=torch.ones(8)), tmp_path / "x.pt")
    data = (tmp_path / "x.pt").read_bytes()
    at = data.index(b"K\x08\x85")  # the size, a tuple of one byte
    (tmp_path / "y.pt").write_bytes(data[:at] + b"K\x09\x85" + data[at + 3 :])
    with pytest.raises(ht.CheckpointError, match=r"y\.pt"):
        ht.load(tmp_path / "y.pt")


def test_any_safetensors_and_the_order_of_arguments(tmp_path):
    save_file({"a": np.arange(3, dtype=np.float16)}, tmp_path / "x.safetensors")
    assert ht.load(tmp_path / "x.safetensors")["a"].tolist() == [0, 1, 2]
    ht.save({"b": ht.ones(2), "n": 1}, tmp_path / "y.pt")
    assert ht.load(tmp_path / "y.pt")["n"] == 1


def test_a_damaged_or_foreign_archive_is_refused_by_what_is_wrong(tmp_path):
    torch.save({"a": torch.ones(2)}, tmp_path / "x.pt")
    with zipfile.ZipFile(tmp_path / "x.pt") as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    root = next(name for name in parts if name.endswith("data.pkl")).removesuffix("data.pkl")
    tree = parts[f"{root}data.pkl"]
    for name, wrong, told in (
        (f"{root}data/0", b"1234", f"{root}data/0 has 4 bytes for 2 elements of f32, which are 8"),
        (f"{root}data.pkl", b"K\x01K\x02R.", "is no file of PyTorch"),  # calls a number
        (f"{root}data.pkl", tree[:40], "is no file of PyTorch"),
    ):
        with zipfile.ZipFile(tmp_path / "bad.pt", "w") as archive:
            for part, content in {**parts, name: wrong}.items():
                archive.writestr(part, content)
        with pytest.raises(ht.CheckpointError, match=told):
            ht.load(tmp_path / "bad.pt")
    np.savez(tmp_path / "x.npz", a=np.ones(2))
    with pytest.raises(ht.CheckpointError, match=r"without PyTorch.s data\.pkl"):
        ht.load(tmp_path / "x.npz")
