"""The newest checkpoint of a folder that is whole, however many damaged ones are newer."""

import os

import pytest

import stack.framework as ht


def kept(folder, name, number, written_s):
    ht.save(folder / name, {"number": number})
    os.utime(folder / name, (written_s, written_s))


def test_there_is_none_in_an_empty_folder_or_in_no_folder(tmp_path):
    assert ht.load_newest(tmp_path) is None
    assert ht.load_newest(tmp_path / "none") is None


def test_the_newest_is_the_one_written_last_whatever_its_name(tmp_path):
    kept(tmp_path, "b.safetensors", 1, 100)
    kept(tmp_path, "a.safetensors", 2, 200)
    (tmp_path / "c.txt").write_text("no checkpoint")
    path, state = ht.load_newest(tmp_path)
    assert (path.name, state) == ("a.safetensors", {"number": 2})


def test_damaged_newer_ones_are_passed_over_with_a_warning(tmp_path):
    kept(tmp_path, "old.safetensors", 1, 100)
    kept(tmp_path, "new.safetensors", 2, 200)
    whole = (tmp_path / "new.safetensors").read_bytes()
    (tmp_path / "new.safetensors").write_bytes(whole[:-1])
    with pytest.warns(RuntimeWarning, match="new.safetensors .* an older checkpoint is looked for"):
        path, state = ht.load_newest(tmp_path)
    assert (path.name, state) == ("old.safetensors", {"number": 1})
    (tmp_path / "old.safetensors").unlink()
    with pytest.warns(RuntimeWarning, match="is looked for"):
        assert ht.load_newest(tmp_path) is None
