"""How much memory there is, on every system, so that a training that cannot fit is refused before it is killed."""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import sys
from pathlib import Path

import torch

PROC, CGROUPS = Path("/proc"), Path("/sys/fs/cgroup")


def free_memory(device: torch.device) -> float | None:
    """Bytes that the machine and its containers leave free on a device; None where the system does not report it."""
    if device.type == "cuda":
        kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)  # by torch, to be used again
        return float(torch.cuda.mem_get_info(device)[0] + kept)
    found = [size for size in (_of_the_machine(), *_of_control_groups()) if size is not None]
    return min(found, default=None)


def in_words(size: float) -> str:
    """A number of bytes as people write it."""
    return f"{size / 2**30:,.1f} GiB" if size >= 2**30 else f"{size / 2**20:,.1f} MiB"


def _of_the_machine() -> float | None:
    with contextlib.suppress(OSError):
        found = re.search(r"^MemAvailable:\s+(\d+) kB", (PROC / "meminfo").read_text(), re.MULTILINE)
        if found:
            return 1024.0 * int(found[1])
    if sys.platform == "win32":
        return _of_windows()
    for pages in ("SC_AVPHYS_PAGES", "SC_PHYS_PAGES"):  # macOS reports only how much there is in all
        with contextlib.suppress(AttributeError, ValueError, OSError):
            return float(os.sysconf("SC_PAGE_SIZE")) * os.sysconf(pages)
    return None


def _of_windows() -> float | None:
    class Status(ctypes.Structure):
        _fields_ = (
            ("length", ctypes.c_ulong),
            ("load", ctypes.c_ulong),
            *((name, ctypes.c_ulonglong) for name in ("all", "free", "a", "b", "c", "d", "e")),
        )

    status = Status()
    status.length = ctypes.sizeof(status)
    with contextlib.suppress(AttributeError, OSError):
        if ctypes.windll.kernel32.GlobalMemoryStatusEx(ctypes.byref(status)):  # type: ignore[attr-defined, unused-ignore]
            return float(status.free)
    return None


def _of_control_groups() -> list[float]:
    """What the limits of the process's groups leave, for both versions of Linux's control groups."""
    try:
        lines = (PROC / "self" / "cgroup").read_text().splitlines()
    except OSError:
        return []
    found = []
    for line in lines:
        _, kinds, name = line.split(":", 2)
        if kinds and "memory" not in kinds.split(","):
            continue
        root, limit, used = (
            (CGROUPS / "memory", "memory.limit_in_bytes", "memory.usage_in_bytes")
            if kinds
            else (CGROUPS, "memory.max", "memory.current")
        )
        own = root / name.lstrip("/")
        for group in (own, *own.parents):  # inside a container the name may be one of the host's: then only the root
            if not group.is_relative_to(root):
                break
            with contextlib.suppress(OSError, ValueError):
                most = int((group / limit).read_text())
                cached = re.search(
                    r"^(?:total_)?inactive_file (\d+)", (group / "memory.stat").read_text(), re.MULTILINE
                )
                taken = int((group / used).read_text()) - (int(cached[1]) if cached else 0)
                found.append(float(max(0, most - taken)))
    return found
