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
from typing import Any

from datatrove.executor.base import DistributedEnvVars, PipelineExecutor
from tqdm import tqdm

from lesa.errors import LesaError

QUIET = 1
"""A local rank whose log goes into its file only."""


def run_tasks(task: Callable[[int], None], count: int, processes: int, folder: Path, title: str) -> None:
    """Call ``task`` with each number below ``count`` that ``folder`` does not mark as complete, lowest first.

    Args:
        task: can be pickled, and starts over where an earlier attempt was killed.
        count: how many tasks there are.
        processes: with one, or with one task left, the work is done in this process.
        folder: keeps a marker for each complete task, and logs.
        title: of the progress bar.

    Raises:
        LesaError: a task raised it, or a process was killed. Complete tasks stay complete.
    """
    _Executor(task, count, processes, folder, title).run()


class _Executor(PipelineExecutor):
    def __init__(self, task: Callable[[int], None], count: int, processes: int, folder: Path, title: str) -> None:
        super().__init__([_Step(task)], str(folder))
        self._count, self._processes, self._title = count, processes, title

    @property
    def world_size(self) -> int:
        return self._count

    def get_distributed_env(self, node_rank: int = -1) -> DistributedEnvVars:
        names = ("node_ips", "cpus_per_task", "mem_per_cpu", "gpus_on_node", "executor")
        return DistributedEnvVars(**{f"datatrove_{name}": "" for name in names})

    def run(self) -> None:
        ranks = self.get_incomplete_ranks()
        processes = min(self._processes, len(ranks))
        with tqdm(total=self._count, initial=self._count - len(ranks), desc=self._title, unit="shard") as bar:
            for _ in self._here(ranks) if processes <= 1 else self._in_pool(ranks, processes):
                bar.update()

    def _here(self, ranks: list[int]) -> Iterator[None]:
        for rank in ranks:
            self.run_one(rank)
            yield

    def _in_pool(self, ranks: list[int], processes: int) -> Iterator[None]:
        # Not forked: this process has threads by now.
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(processes, context, initializer=_start, initargs=(self,)) as pool:
            try:
                for done in as_completed([pool.submit(_run, rank) for rank in ranks]):
                    done.result()
                    yield
            except BrokenProcessPool:
                raise LesaError(
                    "a process that prepared the corpus was killed, most likely for want of memory; what is finished "
                    "is kept, so run again, with a smaller corpus.processes"
                ) from None
            finally:
                pool.shutdown(wait=False, cancel_futures=True)

    def run_one(self, rank: int) -> None:
        try:
            self._run_for_rank(rank, QUIET)
        except _Carried as error:
            raise error.args[0] from None


class _Carried(BaseException):
    """Takes an error past datatrove, which would print it, with the value of every variable."""


class _Step:
    """A task as a step of a datatrove pipeline."""

    def __init__(self, task: Callable[[int], None]) -> None:
        self._task = task

    def __call__(self, data: Any, rank: int, world_size: int) -> None:
        try:
            self._task(rank)
        except Exception as error:
            raise _Carried(error) from None


_executor: _Executor


def _start(executor: _Executor) -> None:
    global _executor
    _executor = executor
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _run(rank: int) -> None:
    _executor.run_one(rank)
