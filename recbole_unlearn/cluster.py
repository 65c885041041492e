"""Ray: a session on this machine or on a cluster, and independent pieces of work on it.

Ray is imported here only, when work is to run on it. A piece of work carries its data with it: no disk is shared.
"""

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

from recbole_unlearn.errors import UnlearnError, reason
from recbole_unlearn.log import own_handlers

START_SECONDS = 12.0  # typical cost of starting Ray and its workers, which import torch and RecBole
RETRIES = 1  # of work whose worker died
CONNECT_SECONDS = 5.0  # limit for a cluster to answer
# RecBole 1.2.1 asks for Ray 2.6, which was made for numpy 1; numpy 2 may stand beside it.
GO_TOGETHER = 'These versions go together: pip install "recbole==1.2.0" "ray[tune]>=2.40" "numpy>=2".'


def import_ray(module: str = "ray") -> Any:
    """Ray or `ray.tune`, or an error that says how to get one that works; Ray 2.6 has no Tune with numpy 2."""
    name, otherwise = ("Ray", ", or --workers=1 to do without") if module == "ray" else ("Ray Tune", "")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Ray 2.6 imports pkg_resources, which is deprecated
            found = importlib.import_module(module)
            with contextlib.suppress(ModuleNotFoundError):  # Ray works without pyarrow, but not with a broken one
                importlib.import_module("pyarrow")
    except ModuleNotFoundError as error:
        how = f'use pip install "ray[tune]>=2.40"{otherwise}.'
        raise UnlearnError(f"{name} is not installed ({error}); {how}") from error
    except (ImportError, AttributeError) as error:
        raise UnlearnError(f"{name} cannot be used here: {reason(error)}. {GO_TOGETHER}") from error
    return found


@contextlib.contextmanager
def session(address: str | None = None, cpus: int | None = None) -> Iterator[Any]:
    """The module `ray`, connected to ``address``, the caller's session, or a Ray of our own, stopped at the end."""
    ray = import_ray()
    if ray.is_initialized():
        yield ray
        return
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # Ray warns about it in every task
    options: dict[str, Any] = {"address": address, "logging_level": logging.ERROR, "log_to_driver": False}
    if address is None:
        # Without "local" Ray would join a cluster that runs on this machine, and refuse the number of CPUs.
        options |= {"address": "local", "num_cpus": cpus or os.cpu_count(), "include_dashboard": False}
        # By default Ray's workers have a low priority, which can make them 20 times slower.
        os.environ.setdefault("RAY_worker_niceness", "0")
    try:
        host, colon, port = (address or "").removeprefix("ray://").rpartition(":")
        if colon and port.isdigit():  # refuse a host that does not answer; Ray itself tries for minutes
            socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_SECONDS).close()
        with own_handlers():  # with Ray's own, SIGTERM would end a command with no message
            ray.init(**options)
    except (ConnectionError, TimeoutError, ValueError, RuntimeError, OSError) as error:
        where = f"the Ray cluster at {address}" if address else "Ray on this machine"
        raise UnlearnError(
            f"Cannot connect to {where}: {reason(error)}. Check --ray_address, or leave it out to work here."
        ) from error
    try:
        yield ray
    finally:
        ray.shutdown()


def free_cores() -> int:
    """The cores that other processes left to this one, by the load of the last minute."""
    others = max(0.0, os.getloadavg()[0] - 1.0) if hasattr(os, "getloadavg") else 0.0
    return max(1, round((os.cpu_count() or 1) - others))


class Workers:
    """Does independent pieces of work, one after the other in this process or on Ray.

    ``number`` pieces at a time: 1 never starts Ray, None does if that saves time. A cluster at ``address`` is used.
    Work on a ``device`` of type cuda gets a share of a GPU there. Each process has ``threads``, or as many as here.
    """

    def __init__(
        self, number: int | None = 1, address: str | None = None, device: str = "cpu", threads: int | None = None
    ) -> None:  # fmt: skip
        self.number, self.address, self.device, self.threads = number, address, device, threads

    def do(self, work: Callable[..., Any], pieces: Sequence[tuple], go_on: bool = False) -> Iterator[tuple[int, Any]]:
        """``work(*piece)`` for all: (position, result) as they end; with ``go_on`` errors are yielded, not raised."""
        left = list(range(len(pieces)))
        seconds: float | None = None  # of the last piece
        result: Any
        while left and not self._ray_pays(len(left), seconds):
            start = time.perf_counter()
            try:
                result = work(*pieces[left[0]])
            except Exception as error:
                if not go_on:
                    raise
                result = error
            yield left.pop(0), result
            seconds = time.perf_counter() - start
        if left:
            with contextlib.closing(self._on_ray(work, pieces, left)) as ended:
                for position, result in ended:
                    if isinstance(result, Exception) and not go_on:
                        raise result
                    yield position, result

    def _ray_pays(self, left: int, seconds: float | None) -> bool:
        """Whether ``left`` pieces of about ``seconds`` each (None: not known yet) are to go to Ray."""
        if self.address is not None:
            return True
        if self.number is not None or seconds is None:
            return (self.number or 1) > 1 and left > 1
        rounds = -(-left // free_cores())
        return (left - rounds) * seconds > START_SECONDS and importlib.util.find_spec("ray") is not None

    def _on_ray(
        self, work: Callable[..., Any], pieces: Sequence[tuple], left: Sequence[int]
    ) -> Generator[tuple[int, Any], None, None]:
        """As :meth:`do`; yields the error of a piece that fails instead of a result."""
        threads = self.threads or torch.get_num_threads()
        with session(self.address, self.number) as ray:
            gpus = gpu_share(ray, self.device, min(len(left), self.number or len(left)))
            remote = ray.remote(num_cpus=1, num_gpus=gpus, max_retries=RETRIES)(_with_threads)
            position = {remote.remote(threads, work, pieces[k]): k for k in left}
            waiting = list(position)
            try:
                while waiting:
                    done, waiting = ray.wait(waiting, num_returns=1)
                    yield position[done[0]], _outcome(ray, done[0])
            finally:  # the caller stopped before the end
                for task in waiting:
                    ray.cancel(task)


def gpu_share(ray: Any, device: str, at_once: int) -> float:
    """The part of a GPU for each of ``at_once`` pieces of work: Ray hides all GPUs from a piece that asks for none.

    A piece is never on two GPUs, so g GPUs take ⌈n/g⌉ of n pieces each. 0 for work on the CPU, or without a GPU.
    """
    resources = ray.cluster_resources()
    gpus, at_once = int(resources.get("GPU", 0)), min(at_once, int(resources.get("CPU", at_once)))
    return 1.0 / -(-at_once // gpus) if device == "cuda" and gpus else 0.0


def _outcome(ray: Any, task: Any) -> Any:
    """The result of a task that has ended, or its error as it would have been raised in this process."""
    try:
        return ray.get(task)
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, ray.exceptions.RayError):
            return UnlearnError(
                "A Ray worker could not read its work: install the same recbole-unlearn, with the same packages, on "
                "every node of the cluster."
            )
        return error.cause if isinstance(error.cause, Exception) else error
    except ray.exceptions.RayError as error:
        return UnlearnError(
            f"A Ray worker died ({type(error).__name__}); it may have run out of memory. "
            "Use --workers=1, or larger machines."
        )


Calls = Callable[..., list[Any]]  # the name of a method, arguments for all objects, and one of each


@contextlib.contextmanager
def held(kind: type, pieces: Callable[[int], Sequence[tuple]], address: str | None) -> Iterator[Calls]:
    """Objects ``kind(*piece)`` that stay where they are, and a function that calls a method of all, in their order.

    Without an address there is one, in this process; a cluster has one for each of its cores. They are arrays to
    Ray, which sends an argument for all once to a node. They ask for no core: another task never has to end first.
    """
    if address is None:
        one = kind(*pieces(1)[0])
        yield lambda name, shared, own: [getattr(one, name)(*shared, own[0])]
        return
    with session(address) as ray:
        on = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy
        nodes = [(node["NodeID"], int(node["Resources"].get("CPU", 0))) for node in ray.nodes() if node["Alive"]]
        places = [name for name, cores in nodes for _ in range(cores)]
        remote = ray.remote(num_cpus=0)(kind)
        objects = [
            remote.options(scheduling_strategy=on(place, soft=False)).remote(*piece)
            for place, piece in zip(places, pieces(len(places)), strict=True)
        ]

        def call(name: str, shared: Sequence[Any], own: Sequence[Any]) -> list[Any]:
            sent = [ray.put(one) for one in shared]
            pairs = zip(objects, own, strict=True)
            found = [_outcome(ray, task) for task in [getattr(one, name).remote(*sent, x) for one, x in pairs]]
            for error in (one for one in found if isinstance(one, Exception)):
                raise error
            return found

        yield call


def _with_threads(threads: int, work: Callable[..., Any], piece: tuple) -> Any:
    """A piece of work in a process of Ray, with a number of threads."""
    torch.set_num_threads(threads)
    logging.getLogger().setLevel(logging.WARNING)
    return work(*piece)
