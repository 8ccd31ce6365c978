"""The pipeline: in order, never more than its depth in flight, and the batcher held back while that helps."""

import threading

import pytest

from hiscore.serving.pipeline import Pipeline


class Batches:
    """Batches whose end the test decides."""

    def __init__(self) -> None:
        self.launched: list[int] = []
        self.finished: list[int] = []
        self.may_finish = [threading.Event() for _ in range(6)]

    def launch(self, number: int):
        def finish() -> None:
            assert self.may_finish[number].wait(10)
            self.finished.append(number)

        self.launched.append(number)
        return finish


def submitted(pipeline: Pipeline, batches: Batches, number: int) -> threading.Thread:
    thread = threading.Thread(target=pipeline.submit, args=(lambda: batches.launch(number),), daemon=True)
    thread.start()
    return thread


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_submit_returns_as_soon_as_one_more_fits(depth: int) -> None:
    pipeline, batches = Pipeline(depth), Batches()
    for number in range(depth - 1):
        submitted(pipeline, batches, number).join(10)
    last = submitted(pipeline, batches, depth - 1)
    last.join(0.1)
    assert last.is_alive()
    assert batches.launched == list(range(depth))
    batches.may_finish[0].set()
    last.join(10)
    assert not last.is_alive()
    for event in batches.may_finish:
        event.set()
    pipeline.close()
    assert batches.finished == list(range(depth))


def test_a_launch_that_fails_takes_no_place() -> None:
    pipeline, batches = Pipeline(1), Batches()

    def fail():
        raise RuntimeError("no launch")

    for _ in range(3):
        with pytest.raises(RuntimeError, match="no launch"):
            pipeline.submit(fail)
    batches.may_finish[0].set()
    pipeline.submit(lambda: batches.launch(0))
    pipeline.close()
    assert batches.finished == [0]


def test_close_waits_for_what_is_in_flight() -> None:
    pipeline, batches = Pipeline(2), Batches()
    pipeline.submit(lambda: batches.launch(0))
    closing = threading.Thread(target=pipeline.close, daemon=True)
    closing.start()
    closing.join(0.1)
    assert closing.is_alive()
    batches.may_finish[0].set()
    closing.join(10)
    assert batches.finished == [0]


def test_a_pipeline_of_no_depth_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one"):
        Pipeline(0)
