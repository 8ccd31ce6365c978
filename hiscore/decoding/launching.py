"""Launch an iteration on the worker. What fails ends the sequences that it was for, and nothing else."""

from contextlib import AbstractContextManager
from typing import Protocol

from hiscore.decoding.batch import make_admission
from hiscore.decoding.in_flight import InFlight
from hiscore.decoding.interface.worker import Worker
from hiscore.decoding.schedule import Schedule
from hiscore.decoding.sequence import Sequence


class FailOnly(Protocol):
    """Makes a context in which an exception ends some sequences only."""

    def __call__(self, sequences: list[Sequence], launching: bool = False) -> AbstractContextManager[None]:
        """launching: they were counted as in flight, which they are not if it fails."""
        ...


def launch(worker: Worker, schedule: Schedule, fail_only: FailOnly) -> list[InFlight]:
    """Launch what was scheduled, the step first: those that run wait for nobody who starts.

    Args:
        worker: The device side.
        schedule: What the scheduler has decided for this iteration.
        fail_only: Ends sequences whose launch fails.

    Returns:
        The step and the prefill, as far as there are any: their results have yet to be read.
    """
    launched: list[InFlight] = []
    for release in schedule.releases:
        worker.release(release.seq_index, release.host, release.device)
    if schedule.decode_batch is not None:
        with fail_only(schedule.stepped, launching=True):
            if schedule.growths:
                worker.grow(schedule.growths)
            step = worker.step(schedule.decode_batch)
            launched.append(InFlight(step, schedule.stepped, schedule.stepped))
            fail_each(launched[-1].failed, fail_only)
    for sequence in schedule.resumed:
        with fail_only([sequence]):
            worker.restore(
                sequence.seq_index, sequence.length, sequence.host_pages, sequence.staging_pages,
                sequence.restored_pages,
            )  # fmt: skip
    for sequence, prefix in schedule.fetched:
        with fail_only([sequence]):
            worker.fetch(prefix)
    if schedule.sampling is not None:
        with fail_only(schedule.prefilling, launching=True):
            prefill = worker.prefill(schedule.chunks, schedule.sampling)
            prompt_tokens = sum(len(chunk.tokens) for chunk in schedule.chunks)
            launched.append(InFlight(prefill, schedule.prefilling, schedule.completed, prompt_tokens))
            fail_each(launched[-1].failed, fail_only)
    for sequence in schedule.admitted:
        if not sequence.ended:
            with fail_only([sequence]):
                worker.admit(make_admission(sequence))
    return launched


def fail_each(failed: list[tuple[Sequence, Exception]], fail_only: FailOnly) -> None:
    """End sequences, each with its own error."""
    for sequence, error in failed:
        with fail_only([sequence]):
            raise error
