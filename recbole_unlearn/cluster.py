"""Ray, used when it is asked for or saves time: a session on this machine or on a cluster, and work on it.

Ray is imported here only, and only when something is to run on it. :func:`session` connects to a cluster or starts
Ray on this machine for as long as it is needed; :class:`Workers` does a list of independent pieces of work, here one
after the other or on Ray. What a piece of work needs travels with it: no shared disk is assumed.
"""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import os
import socket
import time
import warnings
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any

import torch

from recbole_unlearn.errors import UnlearnError
from recbole_unlearn.log import own_handlers

START_SECONDS = 12.0  # about what starting Ray and its workers costs: they import torch and RecBole
RETRIES = 1  # of work whose worker died
KNOCK_SECONDS = 5.0  # how long a cluster may take to answer
# RecBole 1.2.1 asks for Ray 2.6, which was made for numpy 1; pip puts numpy 2 beside it.
GO_TOGETHER = 'These versions go together: pip install "recbole==1.2.0" "ray[tune]>=2.40" "numpy>=2".'


def import_ray() -> Any:
    """Ray, or an error that says how to get it."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Ray 2.6 imports pkg_resources, which says that it is deprecated
            import ray

            # Ray does without pyarrow, but not with one that does not work.
            with contextlib.suppress(ModuleNotFoundError):
                importlib.import_module("pyarrow")
    except ModuleNotFoundError as error:
        raise UnlearnError(
            'Ray is not installed; use pip install "recbole-unlearn[tune]", or --workers=1 to do without.'
        ) from error
    except ImportError as error:
        raise UnlearnError(f"Ray cannot be used here: {_first_line(error)}. {GO_TOGETHER}") from error
    return ray


def import_tune() -> Any:
    """Ray Tune, or an error that says how to get one that works; Ray 2.6 has none beside numpy 2."""
    ray = import_ray()
    try:
        return importlib.import_module("ray.tune")
    except ModuleNotFoundError as error:
        raise UnlearnError(
            f'Ray Tune is not installed ({error}); use pip install "recbole-unlearn[tune]".'
        ) from error
    except (ImportError, AttributeError) as error:
        raise UnlearnError(
            f"Ray Tune of Ray {ray.__version__} cannot be used here: {_first_line(error)}. {GO_TOGETHER}"
        ) from error


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")


@contextlib.contextmanager
def session(address: str | None = None, cpus: int | None = None) -> Iterator[Any]:
    """The module `ray`, connected: to ``address``, to what the caller has connected, or to a Ray of our own.

    A Ray that was started here is stopped at the end; one that was there before is left running.
    """
    ray = import_ray()
    if ray.is_initialized():
        yield ray
        return
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # Ray warns about it in every task
    options: dict[str, Any] = {"address": address, "logging_level": logging.ERROR, "log_to_driver": False}
    if address is None:
        # Without "local" Ray would join a cluster that runs on this machine, and refuse the number of CPUs.
        options |= {"address": "local", "num_cpus": cpus or os.cpu_count(), "include_dashboard": False}
        # By default Ray's workers yield to everything else on the machine, which can make them 20 times slower.
        os.environ.setdefault("RAY_worker_niceness", "0")
    try:
        _knock(address)
        with own_handlers():  # Ray's handler of SIGTERM would end a command with Ray's exit code, and no word
            ray.init(**options)
    except (ConnectionError, TimeoutError, ValueError, RuntimeError, OSError) as error:
        where = f"the Ray cluster at {address}" if address else "Ray on this machine"
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise UnlearnError(
            f"Cannot connect to {where}: {reason.rstrip('.')}. Check --ray_address, or leave it out to work here."
        ) from error
    try:
        yield ray
    finally:
        ray.shutdown()


def _knock(address: str | None) -> None:
    """Refuse a host that does not answer within seconds; Ray itself tries for minutes."""
    host, colon, port = (address or "").removeprefix("ray://").rpartition(":")
    if colon and port.isdigit():
        socket.create_connection((host.strip("[]"), int(port)), timeout=KNOCK_SECONDS).close()


class Workers:
    """Does independent pieces of work.

    Args:
        number: pieces at a time. 1 never starts Ray; None starts it when that saves time, judged by how long the
            first piece takes.
        address: of a Ray cluster, which is then always used.

    """

    def __init__(self, number: int | None = 1, address: str | None = None) -> None:
        self.number, self.address = number, address

    def do(
        self, work: Callable[..., Any], pieces: Sequence[tuple], go_on: bool = False
    ) -> Iterator[tuple[int, Any]]:
        """``work(*piece)`` for every piece; yields (position, result) in the order in which they end.

        The first piece that fails ends all. With ``go_on``, its error is yielded instead of its result.
        """
        left = list(range(len(pieces)))
        while left and not self._ray_pays(len(left), None):
            start = time.perf_counter()
            yield left[0], _attempt(work, pieces[left[0]]) if go_on else work(*pieces[left[0]])
            left.pop(0)
            if left and self._ray_pays(len(left), time.perf_counter() - start):
                break
        if left:
            with contextlib.closing(self._on_ray(work, pieces, left)) as ended:
                for position, result in ended:
                    if isinstance(result, Exception) and not go_on:
                        raise result
                    yield position, result

    def _ray_pays(self, left: int, seconds: float | None) -> bool:
        """Whether ``left`` pieces, each of about ``seconds`` (None: not known yet), are to go to Ray."""
        if self.address is not None:
            return True
        if self.number is not None or seconds is None:
            return (self.number or 1) > 1 and left > 1
        rounds = -(-left // _idle_cores())
        return (left - rounds) * seconds > START_SECONDS and _installed()

    def _on_ray(
        self, work: Callable[..., Any], pieces: Sequence[tuple], left: Sequence[int]
    ) -> Generator[tuple[int, Any], None, None]:
        """As :meth:`do`; for a piece that fails, its error is yielded instead of a result."""
        threads = torch.get_num_threads()
        with session(self.address, self.number) as ray:
            remote = ray.remote(num_cpus=1, max_retries=RETRIES)(_with_threads)
            position = {remote.remote(threads, work, pieces[k]): k for k in left}
            waiting = list(position)
            try:
                while waiting:
                    done, waiting = ray.wait(waiting, num_returns=1)
                    yield position[done[0]], _outcome(ray, done[0])
            finally:  # nobody waits for the tasks that are left, if there are any
                for task in waiting:
                    ray.cancel(task)


def _outcome(ray: Any, task: Any) -> Any:
    """The result of a task that has ended, or the error it ended with."""
    try:
        return ray.get(task)
    except ray.exceptions.RayTaskError as error:
        return _reason(ray, error)
    except ray.exceptions.RayError as error:
        return UnlearnError(
            f"A Ray worker died ({type(error).__name__}); it may have run out of memory. "
            "Use --workers=1, or larger machines."
        )


def _attempt(work: Callable[..., Any], piece: tuple) -> Any:
    """``work(*piece)``, or what it raised."""
    try:
        return work(*piece)
    except Exception as error:
        return error


def _reason(ray: Any, error: Any) -> Exception:
    """What a task raised, as it would have been raised here."""
    if isinstance(error.cause, ray.exceptions.RayError):
        return UnlearnError(
            "A Ray worker could not read its work: install the same recbole-unlearn, with the same packages, on "
            "every node of the cluster."
        )
    return error.cause if isinstance(error.cause, Exception) else error


def _idle_cores() -> int:
    """Cores that other processes leave free; this process itself counts as one in the load."""
    others = max(0.0, os.getloadavg()[0] - 1.0) if hasattr(os, "getloadavg") else 0.0
    return max(1, round((os.cpu_count() or 1) - others))


def _installed() -> bool:
    return importlib.util.find_spec("ray") is not None


def _with_threads(threads: int, work: Callable[..., Any], piece: tuple) -> Any:
    """A piece of work in a process of Ray, with as many threads as the process that asked: the result is the same."""
    torch.set_num_threads(threads)
    logging.getLogger().setLevel(logging.WARNING)
    return work(*piece)
