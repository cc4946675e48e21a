"""Questions that the door asks once for all HTTP requests that want the same answer.

Owns who waits for the answer to which question, how many questions each operator has open, and the turns in
which long answers are sent. A question runs on when nobody waits for it any more, and counts until it is
answered: who hangs up and asks again costs no more than who waits. Invariants: a request waits for one
question, and is answered once; one whose client has gone is forgotten at once.

Knows nothing of: the broker, what is asked, the text of answers.
"""

from collections import Counter, deque
from collections.abc import Callable, Hashable
from typing import Any, Final

from carpool.http.core.effects import ContinueAnswers, Effect, Respond

MAX_QUESTIONS: Final = 64
"""The questions and acts of one operator that may be open: as many as one session may ask at the broker's
socket.
"""
ANSWER_TURN_BYTES: Final = 8 * 1024 * 1024
"""Shared answers are sent in one turn of the event loop until their bytes reach this number."""

MakeAnswer = Callable[[Any], Respond]
"""Makes the answer to one HTTP request from what the question has found."""


class SharedQuestion:
    """A question that is open, and the HTTP requests that wait for it."""

    __slots__ = ("key", "principal", "waiting")

    def __init__(self, principal: str | None, key: Hashable) -> None:
        self.principal = principal
        self.key = key
        self.waiting: dict[int, MakeAnswer] = {}


class SharedQuestions:
    """All open questions of one door. Effects are appended to `out`."""

    def __init__(self, out: list[Effect]) -> None:
        self._out = out
        self._joinable: dict[Hashable, SharedQuestion] = {}
        """The open questions whose answer others may have too."""
        self._open_of: Counter[str] = Counter()
        """How many questions of each operator are open."""
        self._waiting: dict[int, SharedQuestion | None] = {}
        """The question that each request waits for; None: the answer is there, and is sent in its turn."""
        self._ready: deque[tuple[int, MakeAnswer, Any]] = deque()

    def join(self, x: int, key: Hashable, answer: MakeAnswer) -> bool:
        """Let this request wait for the question with this key. Returns False if none is open."""
        question = self._joinable.get(key)
        if question is None:
            return False
        self._add(x, question, answer)
        return True

    def has_room(self, principal: str) -> bool:
        """True where this principal may have one more question open."""
        return self._open_of[principal] < MAX_QUESTIONS

    def open(self, x: int, principal: str | None, key: Hashable | None, answer: MakeAnswer) -> SharedQuestion:
        """Open a question for this request. `principal`: with whose questions it counts; None: with nobody's.
        `key`: of those who may join; None: nobody may.
        """
        question = SharedQuestion(principal, key)
        if key is not None:
            self._joinable[key] = question
        if principal is not None:
            self._open_of[principal] += 1
        self._add(x, question, answer)
        return question

    def _add(self, x: int, question: SharedQuestion, answer: MakeAnswer) -> None:
        question.waiting[x] = answer
        self._waiting[x] = question

    def forbid_joining(self) -> None:
        """Something has changed: who asks from now on wants to read what has, so others have to be asked."""
        self._joinable.clear()

    def answered(self, question: SharedQuestion, found: Any) -> None:
        """Answer all who wait for this question from what it has found."""
        if question.key is not None and self._joinable.get(question.key) is question:
            del self._joinable[question.key]
        if question.principal is not None:
            self._open_of[question.principal] -= 1
            if not self._open_of[question.principal]:
                del self._open_of[question.principal]
        for x, answer in question.waiting.items():
            self._waiting[x] = None
            self._ready.append((x, answer, found))
        self.continue_answers()

    def continue_answers(self) -> None:
        """Answer some of the requests whose answer is there."""
        left_bytes = ANSWER_TURN_BYTES
        while self._ready and left_bytes > 0:
            x, answer, found = self._ready.popleft()
            if x in self._waiting:
                del self._waiting[x]
                said = answer(found)
                self._out.append(said)
                left_bytes -= len(said.body)
        if self._ready:
            self._out.append(ContinueAnswers())

    def client_gone(self, x: int) -> None:
        """The client of this request has gone."""
        question = self._waiting.pop(x, None)
        if question is not None:
            del question.waiting[x]

    def check(self) -> None:
        """Assert every invariant."""
        for x, question in self._waiting.items():
            assert question is None or x in question.waiting
        assert all(count > 0 for count in self._open_of.values())
        assert all(
            each.principal is None or self._open_of[each.principal] for each in self._joinable.values()
        )
        unanswered = {x for x, question in self._waiting.items() if question is None}
        assert unanswered <= {x for x, _, _ in self._ready}
