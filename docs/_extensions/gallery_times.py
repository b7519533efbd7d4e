"""The CPU seconds of each example of the gallery; unlike seconds of a clock, they do not depend on other work."""

import json
import os
from pathlib import Path

BEGAN = {}


def record_cpu_time(gallery_conf, name, when):
    """Called by sphinx-gallery before and after each example that it runs; examples it does not run keep theirs."""
    now = sum(os.times()[:4])  # of this process and of those it has waited for
    if when == "before":
        BEGAN[name] = now
        return
    path = Path(gallery_conf["src_dir"], "auto_examples", "cpu_seconds.json")
    known = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    path.write_text(json.dumps(known | {Path(name).stem: now - BEGAN.pop(name)}), encoding="utf-8")
