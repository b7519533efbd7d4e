"""A Ray cluster to work on: connected to where it is used, with errors that say what is missing."""

from __future__ import annotations

import logging
import os
import re
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from lowchurn._extras import importing
from lowchurn._terminal import one_line

ANSWER = 5.0  # seconds that a cluster at an address may take to accept a connection
TOKEN = "set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH, as on the cluster"


@contextmanager
def connected(who: str, address: str | None = None) -> Iterator[Any]:
    """Connect to a cluster that is running, and disconnect at the end.

    Parameters
    ----------
    who : str
        The first word of errors, such as ``bench``.
    address : str, optional
        ``auto`` (the cluster of this machine) or ``HOST:PORT`` of its head; by default ``RAY_ADDRESS``, or ``auto``.
        This machine is a node of it. A process that is connected already stays so, whatever the address.

    Yields
    ------
    module
        The module ``ray``. A cluster is never started here.

    Examples
    --------
    >>> from lowchurn._ray import connected
    >>> with connected("bench", "127.0.0.1:9") as ray:  # doctest: +SKIP
    ...     ray.nodes()
    Traceback (most recent call last):
    ConnectionError: bench: no Ray cluster answers at 127.0.0.1:9 (Connection refused). Start one ...
    """
    with importing(f"{who}: a Ray cluster", "ray"):
        import ray
    if ray.is_initialized():
        yield ray
        return
    place = address or os.environ.get("RAY_ADDRESS") or "auto"
    _check_answer(who, place)
    on_terminate = signal.getsignal(signal.SIGTERM)
    try:
        ray.init(address=place, logging_level=logging.ERROR, log_to_driver=False)
    except Exception as error:
        ray.shutdown()
        raise _explained(who, place, error) from None
    try:
        if threading.current_thread() is threading.main_thread():  # Ray's handler would exit without cleaning up
            signal.signal(signal.SIGTERM, on_terminate)
        yield ray
    finally:
        ray.shutdown()


def _check_answer(who: str, place: str) -> None:
    """Refuse an address where nobody listens; Ray itself tries again for minutes."""
    if place == "auto":
        return
    found = re.fullmatch(r"\[?([^/\s]+?)\]?:([0-9]{1,5})", place)
    if not found or int(found[2]) > 65535:
        advice = " Run the command on a node of the cluster." if place.startswith("ray://") else ""
        raise ValueError(f"{who}: address must be auto or HOST:PORT, got {place!r}.{advice}")
    try:
        socket.create_connection((found[1], int(found[2])), timeout=ANSWER).close()
    except (OSError, UnicodeError) as error:
        raise _no_cluster(who, place, getattr(error, "strerror", None) or "no answer") from None


def _no_cluster(who: str, place: str, reason: str) -> ConnectionError:
    return ConnectionError(
        f"{who}: no Ray cluster answers at {place} ({reason}). Start one with `ray start --head`, or give the address "
        "of one that runs."
    )


def _explained(who: str, place: str, error: Exception) -> Exception:
    """What went wrong between this process and the cluster, and what to do about it."""
    if type(error).__name__ == "AuthenticationError":
        return ConnectionError(f"{who}: the Ray cluster at {place} wants a token: {TOKEN}.")
    if isinstance(error, ConnectionError):
        if place == "auto" and "could not find" in str(error).lower():
            return _no_cluster(who, place, "none runs on this machine")
        return ConnectionError(
            f"{who}: the cluster at {place} does not let this process in ({one_line(error)}). If it uses token "
            f"authentication, {TOKEN}."
        )
    return ValueError(f"{who}: cannot use the Ray cluster at {place}: {one_line(error)}.")
