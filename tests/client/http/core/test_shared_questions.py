"""Who waits for which question of the door, on the table alone."""

from typing import Any

import pytest

from carpool.http.core import shared_questions
from carpool.http.core.effects import ContinueAnswers, Effect, Respond
from carpool.http.core.shared_questions import MAX_QUESTIONS, MakeAnswer, SharedQuestions


def answer_to(x: int) -> MakeAnswer:
    def answer(found: Any) -> Respond:
        return Respond(x, 200, found)

    return answer


def answered(out: list[Effect]) -> list[int]:
    return [each.x for each in out if isinstance(each, Respond)]


def test_those_who_join_get_the_answer_and_those_who_are_gone_do_not() -> None:
    out: list[Effect] = []
    questions = SharedQuestions(out)
    assert not questions.join(1, "k", answer_to(1))
    question = questions.open(1, "p", "k", answer_to(1))
    assert questions.join(2, "k", answer_to(2))
    assert questions.join(3, "k", answer_to(3))
    assert not questions.join(4, "other", answer_to(4))
    questions.client_gone(1)
    questions.client_gone(4)
    questions.check()
    assert [*question.waiting] == [2, 3], "nothing is kept of a client that has gone"
    questions.answered(question, b"found")
    assert answered(out) == [2, 3]
    assert not questions.join(5, "k", answer_to(5)), "it is no longer open"
    questions.check()


def test_a_question_counts_until_it_is_answered_whoever_has_gone() -> None:
    questions = SharedQuestions([])
    opened = [questions.open(x, "p", None, answer_to(x)) for x in range(MAX_QUESTIONS)]
    for x in range(MAX_QUESTIONS):
        questions.client_gone(x)
    questions.check()
    assert not questions.has_room("p")
    assert questions.has_room("q")
    questions.answered(opened[0], b"")
    assert questions.has_room("p")


def test_questions_of_nobody_are_not_counted() -> None:
    questions = SharedQuestions([])
    for x in range(MAX_QUESTIONS):
        questions.open(x, None, x, answer_to(x))
    questions.check()
    assert questions.has_room("")


def test_nobody_joins_a_question_of_before_a_change_and_its_end_leaves_the_next_one() -> None:
    out: list[Effect] = []
    questions = SharedQuestions(out)
    before = questions.open(1, "p", "k", answer_to(1))
    questions.forbid_joining()
    assert not questions.join(2, "k", answer_to(2))
    after = questions.open(2, "p", "k", answer_to(2))
    questions.answered(before, b"")
    assert questions.join(3, "k", answer_to(3))
    questions.answered(after, b"")
    assert answered(out) == [1, 2, 3]


def test_long_answers_are_sent_in_turns_and_a_client_may_go_between_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(shared_questions, "ANSWER_TURN_BYTES", 10)
    out: list[Effect] = []
    questions = SharedQuestions(out)
    question = questions.open(1, "p", "k", answer_to(1))
    for x in (2, 3, 4):
        questions.join(x, "k", answer_to(x))
    questions.answered(question, b"12345")
    assert answered(out) == [1, 2]
    assert isinstance(out[-1], ContinueAnswers)
    questions.client_gone(3)
    questions.check()
    questions.continue_answers()
    assert answered(out) == [1, 2, 4]
    assert not isinstance(out[-1], ContinueAnswers)
