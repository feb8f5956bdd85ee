"""Counters that tell whether somebody else used the CPU; cheap enough to read around every timed turn.

What they can't tell: under a hypervisor without a steal clock, stolen time is booked as time of whatever process
was running, so it can't be told from work. Guests of one machine also share caches, memory bandwidth and
hyper-threads without any trace here. Most kernels book CPU time by ticks (1 to 10 ms): a process that sleeps just
before each tick is nearly invisible. Quiet counters are therefore necessary, not sufficient, for a quiet turn.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import msgspec
import psutil

from unlag.errors import Missing, UsageError
from unlag.measure.host_cgroup import find_groups, read_throttling
from unlag.measure.host_files import Sources, read_int, read_text

_TICKS_PER_S = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100
"""Unit of ``/proc/stat``, see proc(5); 100 on every common Linux."""

_USER, _NICE, _SYSTEM, _IRQ, _SOFTIRQ, _STEAL = 0, 1, 2, 5, 6, 7
"""Columns of a ``cpuN`` line of ``/proc/stat``; guest time (8, 9) is already part of user time."""


class CpuClock(msgspec.Struct, frozen=True):
    """CPU seconds since boot, by logical core."""

    busy_s: dict[int, float]
    """Running anything, interrupts included; waiting for input or output is not busy."""
    steal_s: dict[int, float] | Missing
    """Ready to run, but the hypervisor ran something else."""


def sample_cpu(sources: Sources | None = None) -> CpuClock:
    """Read the CPU clocks of all cores; on Linux in steps of 10 ms a core and kind of time.

    Raises:
        UsageError: Linux without a readable ``/proc/stat``.
    """
    sources = sources or Sources()
    if not sources.is_linux:
        return _sample_with_psutil()
    text = read_text(sources.proc / "stat")
    if isinstance(text, Missing):
        raise UsageError(f"CPU time can't be read: {text.reason}", "mount /proc in this container")
    busy_s: dict[int, float] = {}
    steal_s: dict[int, float] = {}
    for line in text.splitlines()[1:]:
        if not line.startswith("cpu"):
            break
        name, *columns = line.split()
        ticks = [int(column) for column in columns] + [0] * max(0, 8 - len(columns))
        core = int(name[3:])
        busy = ticks[_USER] + ticks[_NICE] + ticks[_SYSTEM] + ticks[_IRQ] + ticks[_SOFTIRQ]
        busy_s[core] = busy / _TICKS_PER_S
        steal_s[core] = ticks[_STEAL] / _TICKS_PER_S
    return CpuClock(busy_s, steal_s)


def _sample_with_psutil() -> CpuClock:
    cores = psutil.cpu_times(percpu=True)
    # On Windows interrupt and dpc time are already part of system time.
    busy_s = {core: times.user + times.system + getattr(times, "nice", 0.0) for core, times in enumerate(cores)}
    return CpuClock(busy_s, Missing("this operating system does not report steal time"))


class Counters:
    """The counters of some cores. Which files hold them is found out once."""

    def __init__(self, cores: Sequence[int], sources: Sources | None = None) -> None:
        self.cores = tuple(cores)
        self._sources = sources or Sources()
        self._throttle_files = find_throttle_files(self._sources, self.cores)
        self._groups = (
            find_groups(self._sources, "cpu")
            if self._sources.is_linux
            else Missing("control groups exist on Linux only")
        )

    def cpu_s(self) -> tuple[float, float | Missing]:
        """Busy and stolen CPU seconds since boot, summed over the cores.

        Raises:
            UsageError: one of the cores is not online.
        """
        clock = sample_cpu(self._sources)
        try:
            busy_s = sum(clock.busy_s[core] for core in self.cores)
            if isinstance(clock.steal_s, Missing):
                return busy_s, clock.steal_s
            return busy_s, sum(clock.steal_s[core] for core in self.cores)
        except KeyError as error:
            raise UsageError(f"core {error.args[0]} is not online", f"online are {sorted(clock.busy_s)}") from error

    def thermal_throttles(self) -> int | Missing:
        """How often the cores or their packages slowed down because of heat."""
        return read_throttle_count(self._throttle_files)

    def cgroup_throttled_us(self) -> int | Missing:
        """How long a CPU quota stopped us, in microseconds over all cores."""
        throttling = read_throttling(self._groups)
        return throttling if isinstance(throttling, Missing) else throttling[1]


def find_throttle_files(sources: Sources, cores: Sequence[int]) -> tuple[Path, ...] | Missing:
    """The heat counters of these cores and, once a package, of their packages."""
    if not sources.is_linux:
        return Missing("thermal throttle counters are read on Linux only")
    folders = {core: sources.cpus / f"cpu{core}/thermal_throttle" for core in cores}
    present = {core: folder for core, folder in folders.items() if folder.is_dir()}
    if not present:
        first = folders[cores[0]] if cores else sources.cpus
        return Missing(f"{first} does not exist: only Intel CPUs outside virtual machines count thermal throttling")
    packages = {
        str(read_text(sources.cpus / f"cpu{core}/topology/physical_package_id")): folder
        for core, folder in present.items()
    }
    files = [folder / "core_throttle_count" for folder in present.values()]
    return tuple(files + [folder / "package_throttle_count" for folder in packages.values()])


def read_throttle_count(files: tuple[Path, ...] | Missing) -> int | Missing:
    """Sum of the heat counters; one that can't be read makes the sum ``Missing``."""
    if isinstance(files, Missing):
        return files
    total = 0
    for file in files:
        count = read_int(file)
        if isinstance(count, Missing):
            return count
        total += count
    return total
