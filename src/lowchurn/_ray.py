"""A Ray cluster to work on: connected to where it is used, with errors that say what is missing.

Calls that joblib would make are tasks on it: :func:`training_on` makes it the backend, and :class:`Calls` puts
what many of them need into the cluster's object store once.
"""

from __future__ import annotations

import logging
import os
import re
import signal
import socket
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import joblib

from lowchurn._extras import importing
from lowchurn._terminal import one_line

RETRIES = 3  # of a task whose worker or node was lost
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


@contextmanager
def training_on(who: str, address: str | None = None) -> Iterator[None]:
    """Run what joblib is told to do with several jobs on a cluster; everything else stays in this process.

    Examples
    --------
    >>> from lowchurn._ray import training_on
    >>> with training_on("retrain", "127.0.0.1:9"):  # doctest: +SKIP
    ...     model.set_params(n_jobs=-1).fit(X, y)
    Traceback (most recent call last):
    ConnectionError: retrain: no Ray cluster answers at 127.0.0.1:9 (Connection refused). Start one ...
    """
    with connected(who, address):
        from ray.util.joblib import register_ray

        register_ray()
        with joblib.parallel_config("ray", n_jobs=1):  # of those that do not ask for several
            yield


@dataclass(frozen=True)
class _Reference:
    """What is sent in place of a value that is in the object store."""

    place: Any


class Calls:
    """Calls of one function: by joblib, or as tasks of Ray where joblib's backend is Ray's.

    A task has a CPU to itself, runs on any node that has one free, and is tried again if its worker or node is lost.
    (Ray's own backend hands each call to a random process, and its processes may all be on one node.) What several
    calls need is sent to the cluster once. joblib's other workers share large arrays by files.

    Examples
    --------
    >>> from lowchurn._ray import Calls
    >>> calls = Calls()
    >>> calls.run(pow, [(calls.sent(2), 3), (calls.sent(2), 4)])
    [8, 16]
    """

    def __init__(self) -> None:
        backend, _ = joblib.parallel.get_active_backend()
        self._on_ray = type(backend).__module__.partition(".")[0] == "ray"
        self._sent: dict[int, tuple[Any, _Reference]] = {}

    def sent(self, value: Any) -> Any:
        """The value, or a reference to it, for :func:`received`; the same object has one reference."""
        if value is None or not self._on_ray:
            return value
        if id(value) not in self._sent:
            import ray

            self._sent[id(value)] = value, _Reference(ray.put(value))  # the value is kept, so that its id stays its own
        return self._sent[id(value)][1]

    def run(
        self, function: Callable[..., Any], tasks: Sequence[tuple[Any, ...]], n_jobs: int | None = None
    ) -> list[Any]:
        """What the function returns for each tuple of arguments, in their order.

        A task that Ray lost for good, such as one whose process was killed for its memory, returns its exception.
        """
        if not self._on_ray or joblib.effective_n_jobs(n_jobs) == 1:
            return list(joblib.Parallel(n_jobs=n_jobs)(joblib.delayed(function)(*task) for task in tasks))
        import ray

        call = ray.remote(num_cpus=1, max_retries=RETRIES)(_in_threads)
        most = len(tasks) if n_jobs == -1 else joblib.effective_n_jobs(n_jobs)  # -1: of nodes that come later, too
        results: list[Any] = [None] * len(tasks)
        waiting, running = deque(enumerate(tasks)), dict[Any, int]()
        try:
            while waiting or running:
                while waiting and len(running) < most:
                    place, task = waiting.popleft()
                    running[call.options(name=f"lowchurn {place + 1}/{len(tasks)}").remote(function, *task)] = place
                (done, *_), _ = ray.wait(list(running), num_returns=1)
                place = running.pop(done)
                try:
                    results[place] = ray.get(done)
                except ray.exceptions.RayTaskError as error:  # a bug, as it would be here
                    raise getattr(error, "cause", None) or error from None
                except ray.exceptions.RayError as error:
                    results[place] = error
        finally:
            for task_left in running:
                with suppress(Exception):
                    ray.cancel(task_left)
        return results


def _in_threads(function: Callable[..., Any], *arguments: Any) -> Any:
    """In a task: an estimator that uses joblib itself starts threads there, and no processes."""
    with joblib.parallel_config("threading"):
        return function(*arguments)


def received(value: Any) -> Any:
    """What was sent, in the task. Arrays on Ray are read from the store of the node and cannot be written to."""
    if not isinstance(value, _Reference):
        return value
    import ray

    return ray.get(value.place)


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
