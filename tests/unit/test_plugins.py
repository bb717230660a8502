"""What is installed is read as `importlib.metadata` reads it, mostly without loading that."""

import gc
import importlib.metadata
import sys
import zipfile

import pytest

from phalanx import _plugins


@pytest.fixture
def everything(monkeypatch):
    """All groups count as ours; what was read before is forgotten."""
    monkeypatch.setattr(_plugins, "_STARTS", ("",))
    yield _read
    importlib.metadata.FastPath.__new__.cache_clear()  # it keeps archives open
    gc.collect()
    _plugins._installed.cache_clear()
    _plugins.of.cache_clear()


def _read():
    _plugins._installed.cache_clear()
    return {
        (one.group, one.name, one.value, one.package)
        for some in _plugins._installed().values()
        for one in some
    }


def _by_the_library():
    return {
        (entry.group, entry.name, entry.value, distribution.name)
        for distribution in importlib.metadata.distributions()
        for entry in distribution.entry_points
    }


def test_everything_that_is_installed_is_found(everything):
    assert everything() == _by_the_library()
    assert any(group == "console_scripts" for group, *_ in everything())


def test_a_package_in_an_archive_is_found(everything, tmp_path, monkeypatch):
    path = tmp_path / "packages.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("zipped-1.dist-info/METADATA", "Metadata-Version: 2.1\nName: zipped\n")
        archive.writestr("zipped-1.dist-info/entry_points.txt", "[phalanx.cli]\nx = y:z\n")
    monkeypatch.setattr(sys, "path", [str(path), *sys.path])
    assert ("phalanx.cli", "x", "y:z", "zipped") in everything()


def test_odd_records(everything, tmp_path, monkeypatch, caplog):
    """Comments, spaces, no name, no `=`; a body that looks like a head; a file in place of one."""
    for name, metadata, entries in (
        ("good", "Name: Good.One\n\nName: body\n", "# x\n\n[a.b]\n x = y : z [extra]\n# c\n"),
        ("unnamed", "Version: 1\n\nName: body\n", "[a.b]\nx = y\n"),
        ("unsound", "Name: unsound\n", "[a.b]\nfirst = y\nno value\n"),
    ):
        directory = tmp_path / f"{name}-1.dist-info"
        directory.mkdir()
        (directory / "METADATA").write_text(metadata)
        (directory / "entry_points.txt").write_text(entries)
    (tmp_path / "old.egg-info").write_text("Name: old\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    found = {one for one in everything() if one[0] == "a.b"}
    assert found == {("a.b", "x", "y : z [extra]", "Good.One")}
    assert "unnamed-1.dist-info is broken" in caplog.text
    assert "unsound-1.dist-info is broken" in caplog.text
