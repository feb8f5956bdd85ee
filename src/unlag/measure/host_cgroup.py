"""CPU and memory limits of the control groups that this process runs in, versions 1 and 2."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from unlag.errors import Missing
from unlag.measure.host_facts import Unlimited
from unlag.measure.host_files import Sources, parse_fields, read_int, read_text


class Groups(NamedTuple):
    """The group of this process and those above it that can be seen, the innermost first."""

    version: int
    folders: tuple[Path, ...]


def find_groups(sources: Sources, controller: str) -> Groups | Missing:
    """The folders whose limits of ``controller`` (``cpu``, ``memory``) hold for this process.

    A machine may mix both versions; the controller is where ``/proc/self/cgroup`` names it.
    """
    membership = read_text(sources.proc / "self/cgroup")
    mounts = read_text(sources.proc / "self/mountinfo")
    if isinstance(membership, Missing) or isinstance(mounts, Missing):
        return membership if isinstance(membership, Missing) else Missing(str(mounts))
    paths = {
        name: path
        for _, names, path in (line.split(":", 2) for line in membership.splitlines() if line.count(":") >= 2)
        for name in names.split(",")
    }
    version = 1 if controller in paths else 2
    path = paths.get(controller, paths.get(""))
    mount = _find_mount(mounts, controller, version)
    if path is None or mount is None:
        return Missing(f"no cgroup with the {controller} controller is mounted")
    root, mounted_at = mount
    return Groups(version, _visible_folders(_relocate(sources, mounted_at), root, path))


def read_quota(groups: Groups | Missing) -> float | Unlimited | Missing:
    """Cores that the tightest of the groups allows."""
    if isinstance(groups, Missing):
        return groups
    read = _quota_v1 if groups.version == 1 else _quota_v2
    quotas = [quota for quota in map(read, groups.folders) if quota is not None]
    return min(quotas) if quotas else "unlimited"


def read_throttling(groups: Groups | Missing) -> tuple[int, int] | Missing:
    """Periods in which the groups were throttled, and for how many microseconds (over all cores) together.

    A group without counters has no quota, so nothing throttles it.
    """
    if isinstance(groups, Missing):
        return groups
    periods = time_us = 0
    for folder in groups.folders:
        text = read_text(folder / "cpu.stat")
        if not isinstance(text, Missing):
            fields = parse_fields(text, " ")
            periods += int(fields.get("nr_throttled", 0))
            time_us += int(fields.get("throttled_usec", int(fields.get("throttled_time", 0)) // 1000))
    return periods, time_us


def read_memory_limit(groups: Groups | Missing, total_bytes: int | Missing) -> int | Unlimited | Missing:
    """The tightest memory limit; one at or above the machine's memory limits nothing."""
    if isinstance(groups, Missing):
        return groups
    name = "memory.limit_in_bytes" if groups.version == 1 else "memory.max"
    limits = [limit for limit in (read_int(folder / name) for folder in groups.folders) if isinstance(limit, int)]
    if not limits or (isinstance(total_bytes, int) and min(limits) >= total_bytes):
        return "unlimited"
    return min(limits)


def _find_mount(mounts: str, controller: str, version: int) -> tuple[str, str] | None:
    """The root inside the hierarchy and the mount point, from ``mountinfo`` (see proc(5))."""
    for line in mounts.splitlines():
        left, _, right = line.partition(" - ")
        place, kind = left.split(), right.split()
        if len(place) < 5 or len(kind) < 3:
            continue
        if version == 2 and kind[0] == "cgroup2":
            return place[3], place[4]
        if version == 1 and kind[0] == "cgroup" and controller in kind[2].split(","):
            return place[3], place[4]
    return None


def _relocate(sources: Sources, mount: str) -> Path:
    return sources.sys / mount.removeprefix("/sys/") if mount.startswith("/sys/") else Path(mount)


def _visible_folders(mount: Path, root: str, path: str) -> tuple[Path, ...]:
    """From the process's group up to the mount. A path from outside a container's namespace ends at the mount."""
    inside = path.removeprefix(root) if root != "/" and path.startswith(root) else path
    parts = [part for part in inside.split("/") if part]
    folders = [mount.joinpath(*parts[:depth]) for depth in range(len(parts), -1, -1)]
    return tuple(folders) if ".." not in parts and folders[0].is_dir() else (mount,)


def _quota_v1(folder: Path) -> float | None:
    quota_us, period_us = read_int(folder / "cpu.cfs_quota_us"), read_int(folder / "cpu.cfs_period_us")
    if isinstance(quota_us, Missing) or isinstance(period_us, Missing) or quota_us <= 0 or period_us <= 0:
        return None
    return quota_us / period_us


def _quota_v2(folder: Path) -> float | None:
    text = read_text(folder / "cpu.max")
    words = [] if isinstance(text, Missing) else text.split()
    if len(words) != 2 or not (words[0].isdigit() and words[1].isdigit()):
        return None
    return int(words[0]) / int(words[1])
