"""The batched engine: thousands of networks trained at once.

Needs torch (``pip install "lowchurn[torch]"``).
"""

from lowchurn._extras import importing

with importing("lowchurn.nets", "torch"):
    import torch

from lowchurn.nets import networks
from lowchurn.nets._averages import average
from lowchurn.nets._tasks import Task, strategy_tasks
from lowchurn.nets._train import train

__all__ = ["Task", "average", "networks", "strategy_tasks", "train"]
