"""Requests: refusals that say what is wrong, creates that may be repeated, keys that see only their own.

Its own file because these are the rules of single requests; none needs a full pool.
"""

from __future__ import annotations

import select
import secrets
import threading
from typing import Any

from case import Case
from check import WHARF, Failed, Skipped, check, ensure
from grid import ANSWER, Grid, Reply

NOBODY = "ses_" + "0" * 32
PARALLEL = 10
CHUNK = 64 * 1024
# Sixteen times the default limit.
LARGE = 16 * 1024 * 1024


def whole(reply: Reply, status: int, code: str) -> None:
    """A refusal with everything a person and a program need."""
    error = reply.error(status, code)
    for field in ("code", "message", "advice", "request_id"):
        value = error.get(field)
        ensure(isinstance(value, str) and bool(value), reply.request, f"`error.{field}`", value)
    kind = reply.headers.get("content-type", "")
    ensure(kind.startswith("application/json"), reply.request, "Content-Type application/json", kind)


@check("error-body", WHARF)
def error_body(case: Case) -> None:
    """Every refusal has code, message, advice and request_id."""
    case.grid.need("/v1/sessions?limit=1")
    whole(case.grid.get(f"/v1/sessions/{NOBODY}"), 404, "session_not_found")
    whole(case.grid.get("/v1/sessions/nonsense"), 400, "invalid_id")
    whole(case.grid.get("/v1/no-such-thing"), 404, "route_not_found")


@check("malformed-json", WHARF)
def malformed_json(case: Case) -> None:
    """A body that is not JSON is 400, on both forms of the API."""
    case.grid.need("/v1/sessions?limit=1")
    for root in ("/v1/sessions", "/sessions"):
        for body in (b'{"data":', b"{} {}", b"\xff\xfe"):
            reply = case.adopt(case.grid.request("POST", root, body), root)
            whole(reply, 400, "invalid_request")
    reply = case.adopt(case.grid.request("POST", "/v1/sessions", b"{}", {"Content-Type": "text/html"}))
    whole(reply, 415, "unsupported_media_type")


@check("unknown-field", WHARF)
def unknown_field(case: Case) -> None:
    """A misspelt field is 400 and named."""
    case.grid.need("/v1/sessions?limit=1")
    reply = case.adopt(case.grid.post("/v1/sessions", {"idle_timout": 5}))
    whole(reply, 400, "invalid_request")
    message = reply.error(400)["message"]
    ensure("idle_timout" in message, reply.request, "a message that names `idle_timout`", message)


@check("oversized-body", WHARF)
def oversized_body(case: Case) -> None:
    """A body without measure is 413."""
    case.grid.need("/v1/sessions?limit=1")
    reply = case.adopt(send_large(case.grid))
    whole(reply, 413, "body_too_large")


def send_large(grid: Grid) -> Reply:
    """Sends until the server answers: it need not read what it refuses."""
    what = f"POST /v1/sessions ({LARGE} bytes)"
    client = grid.socket()
    try:
        client.sendall(grid.head("POST", "/v1/sessions", LARGE) + b'{"data":"')
        sent, end = 9, b'"}'
        while sent < LARGE and not select.select([client], [], [], 0.002)[0]:
            part = b"x" * min(CHUNK, LARGE - sent - len(end)) or end
            client.sendall(part)
            sent += len(part)
    except OSError:
        pass  # It has hung up; its answer may be there all the same.
    try:
        client.settimeout(ANSWER * grid.patience)
        text = b""
        while b"\r\n\r\n" not in text:
            more = client.recv(CHUNK)
            if not more:
                raise Failed(f"{what}: expected 413, got the end of the connection")
            text += more
        head, _, body = text.partition(b"\r\n\r\n")
        lines = head.decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])}
        while len(body) < int(headers.get("content-length", "0")):
            more = client.recv(CHUNK)
            if not more:
                break
            body += more
        return Reply(what, int(lines[0].split(" ")[1]), headers, body)
    except OSError as error:
        raise Failed(f"{what}: expected 413, got {type(error).__name__}: {error}") from None
    finally:
        client.close()


@check("wrong-method", WHARF)
def wrong_method(case: Case) -> None:
    """A method that does not apply is 405, with the ones that do in Allow."""
    case.grid.need("/v1/sessions?limit=1")
    for path, methods in (("/v1/sessions", {"GET", "POST"}), (f"/sessions/{NOBODY}", {"GET", "DELETE"})):
        reply = case.grid.request("PATCH", path)
        whole(reply, 405, "method_not_allowed")
        allowed = {word.strip() for word in reply.headers.get("allow", "").split(",")}
        ensure(methods <= allowed, reply.request, f"Allow with {sorted(methods)}", sorted(allowed))


@check("fault-arguments", WHARF)
def fault_arguments(case: Case) -> None:
    """The fault endpoint wants a session: 400 without one, 404 for an unknown one, 405 for GET."""
    case.grid.need_fault("crash-worker")
    case.grid.post(f"/debug/crash-worker?session_id={NOBODY}").expect(404)
    case.grid.get(f"/debug/crash-worker?session_id={NOBODY}").expect(405)


@check("idempotent-create", WHARF)
def idempotent_create(case: Case) -> None:
    """A repeated Idempotency-Key gives the same session, one after the other and ten at once; another body is 409."""
    case.grid.need("/v1/sessions?limit=1")
    header = {"Idempotency-Key": secrets.token_hex(8)}
    wish = case.wish(data={"number": 1})
    first = case.adopt(case.grid.post("/v1/sessions", wish, header)).expect(201).object()["id"]
    again = case.adopt(case.grid.post("/v1/sessions", wish, header)).expect(200, 201).object()["id"]
    ensure(again == first, "POST /v1/sessions with the same key", f"the same session {first}", again)
    other = case.adopt(case.grid.post("/v1/sessions", case.wish(data={"number": 2}), header))
    other.error(409, "idempotency_key_reused")
    case.release(first)
    header = {"Idempotency-Key": secrets.token_hex(8)}
    replies: list[Any] = []

    def client() -> None:
        try:
            replies.append(case.grid.post("/v1/sessions", wish, header))
        except Failed as failure:
            replies.append(failure)

    clients = [threading.Thread(target=client, daemon=True) for _ in range(PARALLEL)]
    for thread in clients:
        thread.start()
    for thread in clients:
        thread.join()
    # All are adopted before anything is judged, so that none is left.
    for reply in replies:
        if isinstance(reply, Reply):
            case.adopt(reply)
    for reply in replies:
        if isinstance(reply, Failed):
            raise reply
    ids = {reply.expect(200, 201).object()["id"] for reply in replies}
    ensure(len(ids) == 1, f"{PARALLEL} POST /v1/sessions with one key at once", "one session", sorted(ids))


def new_key(case: Case, name: str, **fields: Any) -> Any:
    """A client key, revoked at the end."""
    body = case.grid.post("/v1/keys", {"name": f"conformance {name}", **fields}).expect(201).object()
    case.defer(lambda: case.grid.delete(f"/v1/keys/{body['id']}").expect(200, 204, 404))
    ensure(bool(body.get("token")), "POST /v1/keys", "a `token`", body)
    return body


def need_admin(case: Case) -> None:
    """Without a key of our own, the first one made would shut us out."""
    if case.grid.token is None:
        raise Skipped("needs an admin key: --token KEY")
    case.grid.need("/v1/keys")


@check("key-sees-its-own", WHARF)
def key_sees_its_own(case: Case) -> None:
    """A client key sees and ends only its own sessions, and holds no more than its quota."""
    need_admin(case)
    key, other = new_key(case, "one", max_sessions=1), new_key(case, "two")
    owner, stranger = case.grid.with_token(key["token"]), case.grid.with_token(other["token"])
    session = case.adopt(owner.post("/v1/sessions", case.wish())).expect(201).object()["id"]
    path = f"/v1/sessions/{session}"
    owner.get(path).expect(200)
    stranger.get(path).expect(403, 404)
    stranger.delete(path).expect(403, 404)
    for who, grid, wanted in (
        ("its owner", owner, True),
        ("a stranger", stranger, False),
        ("an admin", case.grid, True),
    ):
        listed = grid.get("/v1/sessions?limit=1000").expect(200).object().get("sessions", [])
        is_there = session in [one.get("id") for one in listed]
        ensure(is_there == wanted, "GET /v1/sessions", f"{session} seen by {who}: {wanted}", is_there)
    owner.get(path).expect(200)
    case.adopt(owner.post("/v1/sessions", case.wish())).error(429, "quota_reached")
    stranger.get("/v1/keys").error(403, "forbidden")


@check("key-revoked", WHARF)
def key_revoked(case: Case) -> None:
    """A revoked key is refused with 401 and its sessions end as `policy`; so is a key that never was."""
    need_admin(case)
    key = new_key(case, "revoked")
    owner = case.grid.with_token(key["token"])
    session = case.adopt(owner.post("/v1/sessions", case.wish())).expect(201).object()["id"]
    case.grid.delete(f"/v1/keys/{key['id']}").expect(200, 204)
    owner.get("/v1/sessions").error(401, "unauthorized")
    case.ends_as(session, "policy")
    made_up = key["token"][:-8] + "0" * 8
    case.grid.with_token(made_up).get("/v1/sessions").error(401, "unauthorized")
    case.grid.with_token("nonsense").get("/v1/sessions").error(401, "unauthorized")
