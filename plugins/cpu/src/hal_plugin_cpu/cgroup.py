"""The limits of this process's control groups, versions 1 and 2."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePosixPath

ROOT = Path("/sys/fs/cgroup")
MEMBERSHIP = Path("/proc/self/cgroup")


def memory_limit_nbytes(root: Path = ROOT, membership: Path = MEMBERSHIP) -> int | None:
    """The least number of bytes that any group around this process allows; None without a limit."""
    texts = [_text(folder / "memory.max") for folder in _folders(root, membership, "")]
    texts += [
        _text(folder / "memory.limit_in_bytes") for folder in _folders(root, membership, "memory")
    ]
    return min((int(text) for text in texts if text.isdecimal()), default=None)


def cpu_limit(root: Path = ROOT, membership: Path = MEMBERSHIP) -> float | None:
    """The least number of processors' time that any group allows; None without a limit."""
    quotas = [_text(folder / "cpu.max").split() for folder in _folders(root, membership, "")]
    quotas += [
        [_text(folder / "cpu.cfs_quota_us"), _text(folder / "cpu.cfs_period_us")]
        for folder in _folders(root, membership, "cpu")
    ]
    limited = [(q[0], q[1]) for q in quotas if len(q) == 2 and all(t.isdecimal() for t in q)]
    return min((int(quota) / int(period) for quota, period in limited), default=None)


def _folders(root: Path, membership: Path, controller: str) -> Iterator[Path]:
    """The folders of the group that has the controller ("": version 2) and of all around it."""
    for line in _text(membership).splitlines():
        _, controllers, path = line.split(":", 2)
        if controller not in controllers.split(","):
            continue
        inside = PurePosixPath(path).relative_to("/")
        for part in (inside, *inside.parents):
            yield root / controller / part


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
