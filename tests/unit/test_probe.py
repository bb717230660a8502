"""Checks of a host, by what the driver's tool says."""

import time

import pytest

from phalanx._remote import probe


@pytest.fixture
def driver(monkeypatch):
    """Have nvidia-smi answer so."""

    def answer(lines, problem=""):
        monkeypatch.setattr(probe, "_nvidia_smi", lambda *_: (lines, problem))

    return answer


GPU = "GPU {}: NVIDIA H200 (UUID: GPU-839a9ba2-6c40-4399-95d5-ba2209204417)"


def test_a_gpu_that_fell_off_the_bus(driver):
    """It is not listed, and the tool says so, with or without an error code."""
    driver([GPU.format(0), GPU.format(1)])
    assert probe.check("gpus", 2, 0) == ""
    said = "Unable to determine the device handle for GPU0000:19:00.0: Unknown Error"
    driver([GPU.format(0), said])
    assert probe.check("gpus", 2, 0) == f"1 of 2 GPUs respond: {said}"
    driver([], "nvidia-smi is not installed")
    assert probe.check("gpus", 2, 0) == "0 of 2 GPUs respond: nvidia-smi is not installed"


def test_ecc_errors(driver):
    """Uncorrected ones of any GPU; one that has no ECC has none."""
    driver(["0, 0", "1, [N/A]"])
    assert probe.check("ecc", 0, 0) == ""
    driver(["0, 0", "1, 3"])
    assert probe.check("ecc", 0, 0) == "GPU 1 has 3 uncorrected ECC errors, more than 0"
    assert probe.check("ecc", 3, 0) == ""


def test_a_clock_far_off():
    """In both directions."""
    assert probe.check("clock", 60, time.time()) == ""
    assert "s ahead, more than 60 s" in probe.check("clock", 60, time.time() - 100)
    assert "s behind, more than 60 s" in probe.check("clock", 60, time.time() + 100)


def test_a_full_disk():
    """The directory and the space are named."""
    assert probe.check("disk", 1, 0) == ""
    assert "MiB free, less than" in probe.check("disk", 1 << 60, 0)
