"""Tasks on several processes, each done once whatever gets killed on the way.

datatrove's executor knows which tasks are complete, marks them and keeps their logs. Its local executor is not used:
it waits forever where a worker is killed for want of memory, and its helpers outlive a killed main process.
"""

import multiprocessing
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from types import TracebackType
from typing import Any

from datatrove.executor.base import DistributedEnvVars, PipelineExecutor
from tqdm import tqdm

from lesa.errors import LesaError

QUIET = 1
"""A local rank whose log goes into its file only."""


class Workers:
    """Processes that do numbered tasks, in a ``with`` block. They start with the first work for more than one."""

    def __init__(self, processes: int) -> None:
        # Not forked: this process may have threads by now.
        context = multiprocessing.get_context("spawn")
        self._processes = processes
        self._pool = ProcessPoolExecutor(processes, context, initializer=_start)

    def __enter__(self) -> "Workers":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._pool.shutdown(cancel_futures=True)

    def run(self, task: Callable[[int], None], count: int, folder: Path, title: str) -> None:
        """Call ``task`` with each number below ``count`` that ``folder`` does not mark as complete, lowest first.

        Args:
            task: can be pickled, and starts over where an earlier attempt was killed.
            count: how many tasks there are. One that is left alone is done in this process.
            folder: keeps a marker for each complete task, and logs.
            title: of the progress bar.

        Raises:
            LesaError: a task raised it, or a process was killed. Complete tasks stay complete.
        """
        executor = _Executor(task, count, folder)
        ranks = executor.get_incomplete_ranks()
        with tqdm(total=count, initial=count - len(ranks), desc=title, unit="shard") as bar:
            for _ in self._in_pool(executor, ranks) if min(self._processes, len(ranks)) > 1 else map(executor, ranks):
                bar.update()

    def _in_pool(self, executor: "_Executor", ranks: list[int]) -> Iterator[None]:
        try:
            for done in as_completed([self._pool.submit(executor, rank) for rank in ranks]):
                done.result()
                yield
        except BrokenProcessPool:
            raise LesaError(
                "a process that prepared the corpus was killed, most likely for want of memory; what is finished is "
                "kept, so run again, with a smaller corpus.processes"
            ) from None


class _Executor(PipelineExecutor):
    """A task as a datatrove pipeline of one step; called with a number, it does that one and marks it."""

    def __init__(self, task: Callable[[int], None], count: int, folder: Path) -> None:
        super().__init__([_Step(task)], str(folder))
        self._count = count

    @property
    def world_size(self) -> int:
        return self._count

    def get_distributed_env(self, node_rank: int = -1) -> DistributedEnvVars:
        names = ("node_ips", "cpus_per_task", "mem_per_cpu", "gpus_on_node", "executor")
        return DistributedEnvVars(**{f"datatrove_{name}": "" for name in names})

    def run(self) -> None:
        for rank in self.get_incomplete_ranks():
            self(rank)

    def __call__(self, rank: int) -> None:
        try:
            self._run_for_rank(rank, QUIET)
        except _Carried as error:
            raise error.args[0] from None


class _Carried(BaseException):
    """Takes an error past datatrove, which would print it, with the value of every variable."""


class _Step:
    def __init__(self, task: Callable[[int], None]) -> None:
        self._task = task

    def __call__(self, data: Any, rank: int, world_size: int) -> None:
        try:
            self._task(rank)
        except Exception as error:
            raise _Carried(error) from None


def _start() -> None:
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
