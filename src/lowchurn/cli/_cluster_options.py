"""The options of commands that can work on a cluster."""

from __future__ import annotations

from typing import Annotated

from typer import Option

from lowchurn._checks import check_choice

ClusterOption = Annotated[str | None, Option(help="Cluster to train on: ray. Default: this machine.")]
AddressOption = Annotated[
    str | None, Option(help="Address of the cluster's head. Default: RAY_ADDRESS, or that of this machine.")
]


def on_cluster(who: str, cluster: str | None, **own: object) -> bool:
    """Whether the work goes to a cluster; options that are only for clusters are refused without one."""
    if cluster is not None:
        check_choice(who, "--cluster", cluster, ("ray",))
    elif wrong := [name for name, value in own.items() if value is not None]:
        raise ValueError(f"{who}: --{wrong[0].replace('_', '-')} is for clusters. Add --cluster ray, or leave it out.")
    return cluster is not None
