"""How many threads torch uses: the number that is asked for, or with `auto` the fastest on this machine now."""

import logging
import time

import torch
from recbole.data.dataset import Dataset

from recbole_unlearn.cluster import free_cores
from recbole_unlearn.settings import UnlearnConfig
from recbole_unlearn.training.fast_models import COLUMNS, csr_tensor

SECONDS = 0.05  # of the probe, for all numbers together
GAIN = 1.3  # how much faster than a smaller number a larger one has to be: later it may wait for other processes
LARGEST = 2**21  # parameters that are updated in the probe, at most

logger = logging.getLogger(__name__)


def use_threads(config: UnlearnConfig, train: Dataset) -> None:
    """Set the threads of torch for models of ``train``; `auto` takes no more than there are now."""
    number = config["threads"]
    if number == "auto":
        most, width = min(torch.get_num_threads(), free_cores()), int(config["embedding_size"] or 64)
        rows, batch = train.user_num + train.item_num, config["train_batch_size"]
        rows, batch = (min(int(n), LARGEST // width) for n in (rows, batch))
        links = min(2 * len(train), LARGEST) if hasattr(config.model_class, "get_norm_adj_mat") else 0
        number = fastest(most, rows, width, batch, links)
        logger.info("--threads=auto: %d, with %d cores free.", number, most)
    torch.set_num_threads(number)


def of_one_process(threads: int | str) -> int:
    """The threads of each of several processes: with `auto` they share the machine."""
    return 1 if threads == "auto" else int(threads)


def fastest(most: int, rows: int, width: int, batch: int, links: int = 0) -> int:
    """Of 1, 2, 4, ... and ``most`` threads the fastest at a layer on a batch and an update of all parameters.

    A model of a graph with ``links`` entries multiplies by it, which takes most of its time, and is all that counts.
    """
    numbers = sorted({most, *(2**k for k in range(most.bit_length()))})
    best, shortest = 1, float("inf")
    values, layer, ids = torch.ones(rows, width), torch.ones(width, width), torch.arange(batch) % rows
    if graph := links > 0:
        starts, ends = torch.linspace(0, links, rows + 1).int(), (torch.arange(links) * 7919 % rows).int()
        adjacency = csr_tensor(starts, ends, torch.ones(links), (rows, rows))
        values = values[:, :COLUMNS].contiguous()
    for number in numbers if most > 1 else ():
        torch.set_num_threads(number)
        times = [begin := time.perf_counter()]
        while len(times) < 5 or times[-1] - begin < SECONDS / len(numbers):
            if graph:
                adjacency @ values
            else:
                torch.relu(values.index_select(0, ids) @ layer)
                values.mul_(0.9).addcmul_(values, values, value=0.1)
            times.append(time.perf_counter())
        mean = (times[-1] - times[1]) / (len(times) - 2)  # the threads have started then; a wait for others counts
        if mean * (1.0 if number == 1 else GAIN) < shortest:
            best, shortest = number, mean
    return best
