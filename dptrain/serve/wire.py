"""Defines what goes over the wire: requests, answers in OpenAI's shape, and refusals.

Source of the shape: the OpenAI API reference, "Completions", "Chat" and "Errors". Besides it an answer has ``privacy``: which
artifact answered, who may have influenced it, what was released of the query and what that cost.
"""

import time
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from attest.errors import AttestError
from dptrain.errors import ConfigError, DptrainError, NotPaid
from dptrain.inference.he.scheme import EncryptionRefused
from ledger.budget.leaves import CONTRIBUTION
from ledger.errors import AccountantError, BudgetExhausted, LedgerBusy, LedgerError, ReleaseRefused, RightsRefused

POLICY_CLOSE: Final = 4403
"""WebSocket close code of a refusal by gate or budget; 4400 + n stands for HTTP 400 + n elsewhere."""

MOST_TEXT: Final = 1 << 20
"""Characters of one prompt or message; the limit on the body is usually met first."""

NO_TEXTS: Final = "no references are left that can pay for a text here; what is spent does not come back"
NO_QUERIES: Final = "the corpus can pay for no further query here; what is spent does not come back"

SESSION: Final = r"^[a-z0-9._/-]{1,64}$"


ERRORS: Final[dict[int | str, dict[str, Any]]] = {
    status: {"description": text, "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}}
    for status, text in {
        400: "The request is not in form.", 401: "No token of this server.", 403: "Rights, budget or role refuse it.",
        404: "There is no such class, answer or budget.", 408: "The body did not come in time.",
        413: "The body is too long.", 429: "Too many requests; Retry-After says when.",
        503: "Too busy, draining, or gate or budget cannot be used.",
    }.items()
}  # fmt: skip
"""Describes refusals by status, for OpenAPI."""

ERROR_SCHEMA: Final = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["type", "code", "message"],
            "properties": {"type": {"type": "string"}, "code": {"type": "string"}, "message": {"type": "string"}},
        }
    },
}


class Refused(DptrainError):
    """A request that is not answered.

    Attributes:
        status: HTTP status. kind: ``type`` of the error in JSON. more: what else stands in it.
        after: seconds after which asking again may help; None where it does not.
    """

    def __init__(self, status: int, kind: str, code: str, sentence: str, *, after: int | None = None, **more: Any) -> None:
        super().__init__(code, sentence)
        self.status, self.kind, self.after, self.more = status, kind, after, more

    @property
    def body(self) -> dict[str, Any]:
        """The error as JSON."""
        return {"error": {"type": self.kind, "code": self.code, "message": self.sentence, **self.more}}

    @property
    def close_code(self) -> int:
        """Close code of a WebSocket."""
        return 1013 if self.status == 503 else 4000 + self.status


def refused(error: Exception) -> Refused:
    """Returns an expected error as a refusal, and any other as a fault of the server that says nothing of what it was.

    What is wrong with the server itself, its budget or its release, is 503: who asks cannot mend it.
    """
    if isinstance(error, Refused):
        return error
    if isinstance(error, BudgetExhausted):
        if error.unit == CONTRIBUTION:  # of one reference nothing is told
            return Refused(403, "privacy_budget_exhausted", error.code, NO_TEXTS)
        left = max(0, error.cap - error.spent)
        amounts: dict[str, Any] = {"unit": error.unit, "spent": error.spent, "cap": error.cap, "left": left}
        amounts["asked"] = error.asked
        amounts["scale"] = "1e-9 rho"
        return Refused(403, "privacy_budget_exhausted", error.code, error.sentence, **amounts)
    if isinstance(error, ReleaseRefused | RightsRefused):
        return Refused(403, "rights_refused", error.code, error.sentence)
    if isinstance(error, LedgerBusy):
        return Refused(503, "server_busy", error.code, error.sentence, after=1)
    if isinstance(error, EncryptionRefused | ConfigError | AccountantError):
        return Refused(400, "invalid_request_error", error.code, error.sentence)
    if isinstance(error, NotPaid):
        return Refused(403, "not_paid", error.code, error.sentence)
    if isinstance(error, LedgerError | AttestError | DptrainError | OSError):
        code = getattr(error, "code", "IO")
        sentence = "gate or budget cannot be used, and nothing is answered without them; the operator's log says why"
        return Refused(503, "server_refuses", code, sentence)
    return Refused(500, "server_error", "INTERNAL", "the server failed; its log has more")


class Asked(BaseModel):
    """Is the base of requests: what is not known is refused, so that nobody believes that it was heeded."""

    model_config = ConfigDict(extra="forbid", frozen=True)


Stop = Annotated[str, Field(min_length=1, max_length=200)]


def _as_list(value: Any) -> Any:
    """Returns a lone text as a list of one, and none as an empty list."""
    return [value] if isinstance(value, str) else [] if value is None else value


def _alone(value: Any) -> Any:
    """Returns the one text of a list of one."""
    return value[0] if isinstance(value, list) and len(value) == 1 else value


Label = Annotated[str, Field(max_length=200)]


class Asking(Asked):
    """Is common to all requests for text."""

    model: Annotated[str, Field(max_length=200, description="Generation class, as GET /v1/models lists them.")]
    max_tokens: Annotated[
        int | None, Field(ge=1, le=1 << 20, description="Most tokens of the answer, paid beforehand; 64 without, or fewer.")
    ] = None
    temperature: Annotated[float, Field(ge=0, le=100, allow_inf_nan=False)] = 1.0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    seed: Annotated[int | None, Field(ge=0, lt=1 << 63, description="Of the sampling; noise of releases has none.")] = None
    stop: Annotated[list[Stop], Field(max_length=4), BeforeValidator(_as_list)] = []
    n: Literal[1] = 1
    max_completion_tokens: Annotated[int | None, Field(ge=1, le=1 << 20, description="Another name of max_tokens.")] = None
    presence_penalty: Annotated[Literal[0] | None, Field(description="None but 0 is taken.")] = None
    frequency_penalty: Annotated[Literal[0] | None, Field(description="None but 0 is taken.")] = None
    stream_options: Annotated[dict[str, bool] | None, Field(description="Ignored: the last chunk has the usage.")] = None
    stream: bool = False
    user: Annotated[str | None, Field(max_length=200, description="Ignored: who asks is whose token it is.")] = None
    session: Annotated[
        str | None, Field(pattern=SESSION, description="Session under your own budget, where sessions have a cap.")
    ] = None
    epsilon: Annotated[
        float | None, Field(gt=0, le=1000, allow_inf_nan=False, description="Of this whole answer, where states are released.")
    ] = None
    rights: Annotated[
        str | None, Field(max_length=20_000, description="Signed rights envelope, base64url; else the header Dptrain-Rights.")
    ] = None

    @model_validator(mode="before")
    @classmethod
    def _one_name(cls, values: Any) -> Any:
        """Takes the newer name of ``max_tokens``; both together are refused."""
        if isinstance(values, dict) and values.get("max_completion_tokens") is not None:
            if values.get("max_tokens") is not None:
                raise ValueError("max_tokens and max_completion_tokens are one; give one of them")
            return {**values, "max_tokens": values["max_completion_tokens"]}
        return values


class Completion(Asking):
    """Is the body of ``POST /v1/completions``."""

    prompt: Annotated[str, Field(max_length=MOST_TEXT), BeforeValidator(_alone)]


class Message(Asked):
    """Is one message of a chat."""

    role: Literal["system", "user", "assistant"]
    content: Annotated[str, Field(max_length=MOST_TEXT)]


class Chat(Asking):
    """Is the body of ``POST /v1/chat/completions``."""

    messages: Annotated[list[Message], Field(min_length=1, max_length=1000)]


class Generate(Asked):
    """Is the body of ``POST /v1/dp/generations``: what a text costs, and by which noise it is drawn, is the server's alone."""

    generation: Annotated[str, Field(max_length=200, description="As GET /v1/models lists them, with their labels.")]
    labels: Annotated[
        dict[Label, Label], Field(max_length=16, description="A word for each label, out of the server's lists.")
    ] = {}
    query: Annotated[
        str | None,
        Field(max_length=4096, description="Public query, where the generation retrieves its references; it is not protected."),
    ] = None
    stream: bool = False
    rights: Annotated[
        str | None, Field(max_length=20_000, description="Signed rights envelope, base64url; else the header Dptrain-Rights.")
    ] = None

    @property
    def model(self) -> str:
        """The generation, where an answer names its model."""
        return self.generation


class SplitStart(Asked):
    """Is the body of ``POST /v1/split``: pays for the states of one answer."""

    model: Annotated[str, Field(pattern=SESSION)]
    releases: Annotated[int, Field(ge=1, le=1 << 20, description="States of the answer; each is one release.")]
    epsilon: Annotated[float | None, Field(gt=0, le=1000, allow_inf_nan=False)] = None
    session: Annotated[str | None, Field(pattern=SESSION)] = None
    rights: Annotated[str | None, Field(max_length=20_000)] = None


class Opening(Asked):
    """Is the first message on a WebSocket of text: who asks, where no header says it, and the request."""

    token: Annotated[str | None, Field(max_length=200)] = None
    completion: Completion | None = None
    chat: Chat | None = None
    generation: Generate | None = None


def stamp() -> int:
    """Returns the time of an answer, POSIX seconds."""
    return int(time.time())


def whole(
    request: "Asking | Generate", identity: str, text: str, finish: str, usage: Mapping[str, int], privacy: Mapping[str, Any]
) -> dict[str, Any]:
    """Returns a whole answer."""
    chat = isinstance(request, Chat)
    content: dict[str, Any] = {"message": {"role": "assistant", "content": text}} if chat else {"text": text}
    return {
        "id": identity,
        "object": "chat.completion" if chat else "text_completion",
        "created": stamp(),
        "model": request.model,
        "choices": [{"index": 0, **content, "finish_reason": finish, "logprobs": None}],
        "usage": dict(usage),
        "privacy": dict(privacy),
    }


def chunk(request: "Asking | Generate", identity: str, text: str, finish: str | None = None, **more: Any) -> dict[str, Any]:
    """Returns one piece of a streamed answer. ``more``: ``privacy`` with the first piece, ``usage`` with the last."""
    chat = isinstance(request, Chat)
    content: dict[str, Any] = {"delta": {"content": text} if text else {}} if chat else {"text": text}
    return {
        "id": identity,
        "object": "chat.completion.chunk" if chat else "text_completion",
        "created": stamp(),
        "model": request.model,
        "choices": [{"index": 0, **content, "finish_reason": finish, "logprobs": None}],
        **more,
    }
