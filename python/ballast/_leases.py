# SPDX-License-Identifier: Apache-2.0
"""The shares of a job's examples that one worker gets."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any, Callable, Iterable, Iterator, List, Optional

from . import _library
from ._stop import Stop, stops_on_sigterm
from .errors import InvalidArgument, Timeout

if TYPE_CHECKING:
    from ._connection import Connection

# Seconds of one wait for a lease, which Ctrl-C does not interrupt; the caller's limit may take several.
_POLL = 2.0


class _LoaderSampler:
    """Gives a DataLoader the batches of one lease at a time."""

    def __init__(self) -> None:
        self.batches: List[List[int]] = []

    def __iter__(self) -> Iterator[List[int]]:
        return iter(self.batches)

    def __len__(self) -> int:
        return len(self.batches)


class Batches:
    """Turns leases into batches, and reports each lease as done when all its pushes have ended."""

    def __init__(self, examples: int, batch_size: int, seed: int) -> None:
        self._examples = examples
        self._batch_size = batch_size
        self._seed = seed
        self._batches_done = 0
        self.epoch = 0

    def run(self, connection: "Connection", loader: Any, timeout: Optional[float]) -> Iterator[Any]:
        """Yields batches until all epochs are done."""
        fetch = self._of_numbers if loader is None else self._of_loader(loader)
        with stops_on_sigterm() as stop:
            yield from self._run(connection, fetch, timeout, stop)

    def _run(self, connection: "Connection", fetch: Callable[[List[Any]], Iterable[Any]], timeout: Optional[float],
             stop: Stop) -> Iterator[Any]:
        while not stop.asked:
            connection.wait()
            lease = self._next(connection, timeout, stop)
            if lease is None:
                connection._position = -1.0
                return
            if lease.behind:
                connection._catch_up()
            self.epoch = lease.epoch
            for batch in self._of_lease(connection, lease, fetch):
                yield batch
                if stop.asked:
                    break
            connection.wait()
            if stop.asked:
                # Others need not wait for this worker while it evaluates and saves; its lease goes to one of them.
                connection._report()
                _library.check(connection._lib.ballast_pause(connection._use()))
                return
            # Then each example of a completed lease is counted, also if this process dies.
            connection._report()
            _library.check(connection._lib.ballast_complete_lease(connection._use(), lease.id, connection.step,
                                                                  self._batches_done))

    def _of_lease(self, connection: "Connection", lease: _library.Lease,
                  fetch: Callable[[List[Any]], Iterable[Any]]) -> Iterator[Any]:
        numbers = self._numbers(lease)
        batches = [numbers[i:i + self._batch_size] for i in range(0, len(numbers), self._batch_size)]
        share = (lease.share_end - lease.share_begin) / max(lease.steps, 1)
        for i, (chosen, batch) in enumerate(zip(batches, fetch(batches))):
            connection._position = lease.share_begin + i * share
            connection._batch_examples = len(chosen)
            yield batch
            self._batches_done += 1
        connection._batch_examples = 0
        # In lock step, workers make equal numbers of steps, also those whose share has fewer batches.
        for i in range(len(batches), lease.steps):
            connection._position = lease.share_begin + i * share
            connection.skip_step()
            self._batches_done += 1

    def _next(self, connection: "Connection", timeout: Optional[float], stop: Stop) -> Optional[_library.Lease]:
        lease, finished = _library.Lease(), ctypes.c_int()
        left = timeout
        while True:
            seconds = _POLL if left is None else min(left, _POLL)
            try:
                _library.check(connection._lib.ballast_next_lease(connection._use(), seconds, ctypes.byref(lease),
                                                                  ctypes.byref(finished)))
            except Timeout:
                if stop.asked:
                    return None
                # While the job runs, the coordinator detects lost workers, so it goes on or fails.
                left = None if left is None else left - seconds
                if left is not None and left <= 0:
                    raise
                continue
            return None if finished.value else lease

    def _numbers(self, lease: _library.Lease) -> List[int]:
        count = lease.end - lease.begin
        numbers = (ctypes.c_uint64 * max(count, 1))()
        _library.check(_library.library().ballast_shuffled(self._examples, self._seed, lease.epoch, lease.begin, count,
                                                           numbers))
        return list(numbers)[:count]

    @staticmethod
    def _of_numbers(batches: List[List[int]]) -> Iterable[Any]:
        import numpy
        return (numpy.array(batch, numpy.int64) for batch in batches)

    def _of_loader(self, loader: Any) -> Callable[[List[List[int]]], Iterable[Any]]:
        from torch.utils.data import DataLoader
        if len(loader.dataset) != self._examples:
            raise InvalidArgument(f"leases: got a loader of {len(loader.dataset)} examples, want {self._examples}, as "
                                  "given to connect()")
        sampler = _LoaderSampler()
        workers = loader.num_workers
        options = dict(prefetch_factor=loader.prefetch_factor, persistent_workers=True,
                       multiprocessing_context=loader.multiprocessing_context) if workers else {}
        mine = DataLoader(loader.dataset, batch_sampler=sampler, num_workers=workers, collate_fn=loader.collate_fn,
                          pin_memory=loader.pin_memory, timeout=loader.timeout, worker_init_fn=loader.worker_init_fn,
                          generator=loader.generator, **options)

        def fetch(batches: List[List[int]]) -> Iterable[Any]:
            sampler.batches = batches
            return iter(mine)

        return fetch
