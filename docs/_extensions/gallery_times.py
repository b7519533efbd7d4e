"""The CPU seconds of each example of the gallery; unlike seconds of a clock, they do not depend on other work."""

import json
from pathlib import Path

import psutil

BEGAN = {}


def cpu_seconds():
    """CPU time of this process and all it has started, whether they run, were waited for, or wait for more work."""
    this = psutil.Process()
    spent = sum(this.cpu_times()[:4])
    for process in this.children(recursive=True):
        try:
            spent += sum(process.cpu_times()[:4])
        except psutil.NoSuchProcess:  # it has just ended
            continue
    return spent


def record_cpu_time(gallery_conf, name, when):
    """Called by sphinx-gallery before and after each example that it runs; examples it does not run keep theirs."""
    now = cpu_seconds()
    if when == "before":
        BEGAN[name] = now
        return
    path = Path(gallery_conf["src_dir"], "auto_examples", "cpu_seconds.json")
    known = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    path.write_text(json.dumps(known | {Path(name).stem: now - BEGAN.pop(name)}), encoding="utf-8")
