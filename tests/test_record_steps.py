"""Steps and spans as one thread notes them."""

from __future__ import annotations

import threading
from time import perf_counter_ns

import pytest

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
