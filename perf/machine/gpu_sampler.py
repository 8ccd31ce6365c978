"""Utilization and memory of the first GPU, sampled from NVML ten times a second.

Utilization is the share of the driver's last sample period (0.17 to 1 s) in which some kernel ran.
"""

import ctypes
import os
import statistics
import time
from contextlib import ExitStack

from perf.machine.repeatedly import repeatedly

HERTZ = 10


class _Utilization(ctypes.Structure):
    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))


class _Memory(ctypes.Structure):
    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


class GpuSampler:
    """Samples the first GPU inside the context. Without NVML there are no samples, and `driver` is None."""

    driver: str | None = None
    device: str | None = None

    def __init__(self) -> None:
        self._samples: list[tuple[float, int, int]] = []
        self._sampling = ExitStack()
        self._handle = ctypes.c_void_p()
        try:
            self._nvml = ctypes.CDLL("libnvidia-ml.so.1")
        except OSError:
            return
        if self._nvml.nvmlInit_v2() or self._nvml.nvmlDeviceGetHandleByIndex_v2(
            0, ctypes.byref(self._handle)
        ):
            return
        text = ctypes.create_string_buffer(96)
        self._nvml.nvmlSystemGetDriverVersion(text, 96)
        self.driver = text.value.decode()
        self._nvml.nvmlDeviceGetName(self._handle, text, 96)
        self.device = text.value.decode()

    def __enter__(self) -> "GpuSampler":
        if self.driver:
            self._sampling.enter_context(repeatedly(self._sample, 1 / HERTZ))
        return self

    def __exit__(self, *_: object) -> None:
        self._sampling.close()

    def busy(self, begin: float, end: float) -> float | None:
        """Mean utilization (0 to 1) between two times of `time.perf_counter`; None without samples."""
        samples = [gpu for when, gpu, _ in self._samples if begin <= when <= end]
        return statistics.mean(samples) / 100 if samples else None

    def memory_gib(self, begin: float, end: float) -> float | None:
        """Peak memory in use on the device, by all processes, between two such times; None without samples."""
        samples = [used for when, _, used in self._samples if begin <= when <= end]
        return max(samples) / 2**30 if samples else None

    def _sample(self) -> None:
        rates, memory = _Utilization(), _Memory()
        queries = (
            (self._nvml.nvmlDeviceGetUtilizationRates, rates),
            (self._nvml.nvmlDeviceGetMemoryInfo, memory),
        )
        if not any(function(self._handle, ctypes.byref(into)) for function, into in queries):
            self._samples.append((time.perf_counter(), rates.gpu, memory.used))


def visible_gpus() -> list[str]:
    """The visible GPUs, named as in CUDA_VISIBLE_DEVICES."""
    if named := os.environ.get("CUDA_VISIBLE_DEVICES"):
        return named.split(",")
    import torch

    return [str(index) for index in range(torch.cuda.device_count())]
