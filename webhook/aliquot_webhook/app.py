# SPDX-License-Identifier: Apache-2.0
"""The HTTP surface: /mutate, /validate, /healthz, /readyz and /metrics. The only module that knows Flask."""

import json
import logging
import time
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from flask import Flask, Request, Response, request
from werkzeug.exceptions import HTTPException, RequestEntityTooLarge

from aliquot_api.errors import InvalidInput
from aliquot_webhook.metrics import Metrics
from aliquot_webhook.reviews import Outcome

logger = logging.getLogger(__name__)

MAX_BODY_BYTES: Final = 3 * 1024**2
"""etcd holds objects of 1.5 MiB; a review carries one, and an empty old one."""


class BoundedRequest(Request):
    """A request whose body is read up to a limit, told beforehand or not."""

    max_content_length = MAX_BODY_BYTES


class BoundedFlask(Flask):
    """Flask with bounded bodies."""

    request_class = BoundedRequest


class Judge(Protocol):
    """Who answers reviews."""

    def answer(self, review: object) -> Outcome:
        """The answer; InvalidInput for what is no review."""


def create_app(
    *,
    mutator: Judge,
    validator: Judge,
    metrics: Metrics,
    not_ready: Callable[[], Sequence[str]],
    may_ask: Callable[[object], bool] = lambda connection: True,
) -> Flask:
    """The WSGI application. `not_ready` says what is still missing before pods can be judged, `may_ask`
    whether who is at the other end of a connection may have reviews answered."""
    app = BoundedFlask("aliquot_webhook", static_folder=None)

    def judged(judge: Judge, kind: str) -> Response:
        started = time.perf_counter()
        if not may_ask(request.environ.get("gunicorn.socket")):
            return _text("want the client certificate of an API server", 401)
        if request.mimetype != "application/json":
            return _text("want content type application/json", 415)
        body = request.get_data(cache=False)
        if len(body) >= MAX_BODY_BYTES:  # a body of unknown length is cut there
            raise RequestEntityTooLarge
        try:
            outcome = judge.answer(json.loads(body))
        except InvalidInput as error:
            return _text(str(error), 400)
        except (ValueError, RecursionError):
            return _text("body: want JSON", 400)
        metrics.reviewed(kind=kind, result=outcome.result, seconds=time.perf_counter() - started)
        return Response(json.dumps(outcome.review), mimetype="application/json")

    @app.post("/mutate")
    def mutate() -> Response:
        return judged(mutator, "mutate")

    @app.post("/validate")
    def validate() -> Response:
        return judged(validator, "validate")

    @app.get("/healthz")
    def healthz() -> Response:
        return _text("ok", 200)

    @app.get("/readyz")
    def readyz() -> Response:
        missing = not_ready()
        return _text("\n".join(missing), 503) if missing else _text("ok", 200)

    @app.get("/metrics")
    def exposition() -> Response:
        return Response(metrics.exposition(), mimetype="text/plain; version=0.0.4")

    @app.errorhandler(HTTPException)
    def refuse(error: HTTPException) -> Response:
        return _text(error.name, error.code or 500)

    @app.errorhandler(Exception)
    def fail(error: Exception) -> Response:
        # The API server refuses the pod then (failurePolicy Fail); details are for the log only.
        logger.error("request failed", exc_info=error, extra={"path": request.path})
        return _text("internal error", 500)

    return app


def _text(message: str, status: int) -> Response:
    return Response(f"{message}\n", status=status, mimetype="text/plain")
