"""Steps and spans as one thread notes them."""

from __future__ import annotations

import threading
from time import perf_counter_ns
from types import SimpleNamespace

import pytest

from computeflow.recorder.device_marks import DeviceMarks
from computeflow.recorder.steps import (
    BACKWARD,
    CHECKPOINT,
    DATA,
    EVALUATION,
    FORWARD,
    OPTIMIZER,
    Step,
    StepWatch,
)


@pytest.fixture
def ended() -> list[Step]:
    return []


@pytest.fixture
def watch(ended: list[Step]) -> StepWatch:
    watch = StepWatch(ended.append)
    watch.thread = threading.get_ident()
    return watch


def note(watch: StepWatch, letters: str) -> None:
    for letter in letters:
        watch.end(watch.begin(letter))


def letters(step: Step) -> str:
    return "".join(span[0] for span in step.spans)


def test_a_save_in_an_evaluation_is_kept_and_its_forwards_are_not(watch: StepWatch) -> None:
    evaluation = watch.begin(EVALUATION)
    note(watch, DATA + FORWARD + CHECKPOINT + DATA)
    watch.end(evaluation)
    note(watch, DATA)
    assert letters(watch.step) == EVALUATION + CHECKPOINT + DATA


def test_nothing_is_split_inside_of_a_save(watch: StepWatch) -> None:
    save = watch.begin(CHECKPOINT)
    assert watch.begin(CHECKPOINT) is watch.begin(EVALUATION) is watch.begin(FORWARD) is None
    watch.end(save)
    assert letters(watch.step) == CHECKPOINT


def test_a_step_that_ends_inside_of_backward_ends_with_it(
    watch: StepWatch, ended: list[Step]
) -> None:
    outer = watch.begin(BACKWARD)
    inner = watch.begin(BACKWARD)
    watch.boundary()
    watch.end(inner)
    assert not ended
    watch.end(outer)
    (step,) = ended
    assert letters(step) == BACKWARD * 2
    assert not watch.step.spans


def test_the_thread_of_autograd_ends_a_step_with_the_backward(
    watch: StepWatch, ended: list[Step]
) -> None:
    backward = watch.begin(BACKWARD)
    other = threading.Thread(target=watch.boundary)
    other.start()
    other.join()
    assert not ended
    watch.end(backward)
    assert len(ended) == 1
    assert watch.thread == threading.get_ident()


def test_steps_that_are_known_late_get_their_own_spans(watch: StepWatch, ended: list[Step]) -> None:
    moments = []
    for _ in range(3):
        note(watch, DATA + BACKWARD)
        moments.append(perf_counter_ns())
    note(watch, DATA)
    watch.boundaries(moments)
    assert [letters(step) for step in ended] == [DATA + BACKWARD] * 3
    assert [step.number for step in ended] == [1, 2, 3]
    assert [step.end for step in ended] == moments
    assert letters(watch.step) == DATA


def test_a_span_that_goes_on_after_its_step_is_cut(watch: StepWatch, ended: list[Step]) -> None:
    span = watch.begin(OPTIMIZER)
    watch.boundary()
    watch.end(span)
    assert ended[0].spans[0][2] == ended[0].end == watch.step.spans[0][1]


def test_evaluated_batches_make_one_span(watch: StepWatch) -> None:
    note(watch, OPTIMIZER)
    for _ in range(3):
        note(watch, DATA)
        span = watch.begin(EVALUATION)
        watch.end(span)
        assert span is not None
        watch.join(span)
    note(watch, DATA)
    assert letters(watch.step) == OPTIMIZER + EVALUATION + DATA


def test_what_comes_after_the_last_step_is_the_rest(watch: StepWatch) -> None:
    watch.boundary()
    note(watch, CHECKPOINT)
    watch.begin(EVALUATION)
    rest = watch.rest()
    assert letters(rest) == CHECKPOINT + EVALUATION
    assert rest.spans[-1][2] == rest.end
    assert not watch.step.spans[-1][2]


def test_calls_in_a_row_are_one_span(watch: StepWatch) -> None:
    """Clipping one parameter after the other: the optimizer's own span still has room."""
    note(watch, FORWARD + BACKWARD)
    for _ in range(200):
        watch.end(watch.resume(OPTIMIZER))
    note(watch, FORWARD)
    watch.end(watch.resume(OPTIMIZER))
    assert letters(watch.step) == FORWARD + BACKWARD + OPTIMIZER + FORWARD + OPTIMIZER
    assert all(begin < end for _, begin, end, _ in watch.step.spans) and not watch.is_in(OPTIMIZER)


def test_calls_inside_of_each_other_are_one_span_and_later_ones_are_counted(
    watch: StepWatch,
) -> None:
    outer = watch.resume(OPTIMIZER)
    assert watch.resume(OPTIMIZER) is None
    watch.end(outer)
    assert letters(watch.step) == OPTIMIZER
    note(watch, FORWARD * 39)
    watch.end(watch.resume(OPTIMIZER))
    assert watch.step.more[OPTIMIZER][0] == 1


class Event:
    """An event of a device that is as far as the host."""

    def __init__(self, enable_timing: bool) -> None:
        self.records = 0

    def record(self) -> None:
        self.records += 1


def test_clipping_leaves_marks_for_the_optimizer(watch: StepWatch) -> None:
    cuda = SimpleNamespace(Event=Event, is_current_stream_capturing=lambda: False)
    marks = DeviceMarks(SimpleNamespace(cuda=cuda), SimpleNamespace(tape=None))  # type: ignore[arg-type]
    watch.mark = marks.mark
    note(watch, FORWARD + BACKWARD)
    for _ in range(200):
        watch.end(watch.resume(OPTIMIZER))
    note(watch, OPTIMIZER)
    marked = [span for span, _, _ in marks._marks]
    assert [span[0] for span in marked] == [FORWARD, BACKWARD, OPTIMIZER, OPTIMIZER]
    assert all(span is kept for span, kept in zip(marked, watch.step.spans, strict=True))
    assert [at for _, _, at in marks._marks] == [span[2] for span in watch.step.spans]
