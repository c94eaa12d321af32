"""HTTP to the server: each request has a connection of its own, which any thread may cut.

Cutting the connection tells a server that its answer is not wanted any more.
"""

import http.client
import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from copy import copy
from typing import Any, Self
from urllib.parse import SplitResult, urlsplit, urlunsplit

from batchproof.errors import UsageError

PATH = "/completions"
MAX_ANSWER_BYTES = 64 << 20
# These statuses concern the server or the address, not the request.
NO_REFUSALS = {401, 403, 404, 405, 407, 408, 429}
NUM_SHOWN = 200  # characters of an invalid answer

Body = dict[str, Any]


class EngineFailed(RuntimeError):
    """The server gave no answer or an unreadable one."""

    status: int | None = None  # of HTTP, if it has answered with one

    @property
    def has_answered(self) -> bool:
        return self.status is not None


class Refused(Exception):
    """The server refuses this request, and says why."""


class Cut(Exception):
    """The connection was cut on this side."""


def shown(text: str) -> str:
    """Returns the beginning of an unexpected text, quoted."""
    return repr(text[:NUM_SHOWN]) + (" ..." if len(text) > NUM_SHOWN else "") if text else "nothing"


class Server:
    """An address, the longest wait for its next bytes, and a callback for its failures."""

    def __init__(
        self,
        base_url: str,
        timeout_s: float,
        api_key: str | None = None,
        on_failure: Callable[[], None] = lambda: None,
    ) -> None:
        self.base_url = base_url.rstrip("/")
        self.on_failure = on_failure
        self.parts = _split(self.base_url)
        self.timeout_s = timeout_s
        self.headers = {"Content-Type": "application/json", "Connection": "close"}
        if api_key is not None:
            self.headers["Authorization"] = f"Bearer {api_key}"

    def at_root(self) -> Self:
        """Returns the same server without the path."""
        other = copy(self)
        other.base_url = urlunsplit((*self.parts[:2], "", "", ""))
        other.parts = _split(other.base_url)
        return other

    def exchange(self, method: str, path: str, body: Body | None = None) -> "Exchange":
        return Exchange(self, method, path, body)

    def connection(self) -> http.client.HTTPConnection:
        is_secure = self.parts.scheme == "https"
        kind = http.client.HTTPSConnection if is_secure else http.client.HTTPConnection
        return kind(self.parts.hostname or "", self.parts.port, timeout=self.timeout_s)

    def ask(self, method: str, path: str, body: Body | None = None) -> Any:
        """Returns the JSON value of a whole answer. Raises `EngineFailed` or `Refused`."""
        with closing(self.exchange(method, path, body)) as exchange:
            return exchange.read()

    def tell(self, path: str, body: Body) -> None:
        """Posts what is answered in plain words. Raises as `ask` does."""
        with closing(self.exchange("POST", path, body)) as exchange:
            exchange.read_text()


def _split(base_url: str) -> SplitResult:
    parts = urlsplit(base_url)
    with suppress(ValueError):  # a port that is not a number
        if parts.scheme in ("http", "https") and parts.hostname and parts.port != 0:
            return parts
    raise UsageError(f"base_url {base_url!r} must read http://HOST:PORT/PATH or https://...")


class Exchange:
    """One request and its answer. Every network error becomes `EngineFailed`."""

    def __init__(self, server: Server, method: str, path: str, body: Body | None) -> None:
        self.at_begin: Callable[[Exchange, Body], Body] | None = None  # gives more fields of the body
        self.at_close = ExitStack()  # what else ends with it
        self.also_refusal: int | None = None  # an HTTP status that concerns this request
        self._server, self._method, self._path, self._body = server, method, path, body
        self._connection = server.connection()
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self._is_cut = False
        self._response: http.client.HTTPResponse | None = None

    def cut(self) -> None:
        """Closes the connection from any thread. A thread that waits for bytes gets `Cut`."""
        with self._lock:
            self._is_cut = True
            if self._socket is not None:
                with suppress(OSError):  # it has ended already
                    self._socket.shutdown(socket.SHUT_RDWR)

    def raise_if_cut(self) -> None:
        if self._is_cut:
            raise Cut

    def close(self) -> None:
        """Releases the connection; called by the thread that reads."""
        if self._response is not None:  # it keeps the socket open if the server ends the connection
            self._response.close()
        self._connection.close()
        self.at_close.close()

    def read(self) -> Any:
        """Returns the JSON value of a whole answer. Raises `EngineFailed`, `Refused` or `Cut`."""
        response = self._begin()
        return self._parsed(self._read(response), response.status)

    def read_text(self) -> str:
        return self._read(self._begin()).decode(errors="replace")

    def read_events(self) -> Iterator[Any]:
        """Yields the JSON value of each server-sent event as it arrives. Raises as `read` does."""
        response = self._begin()
        while line := self._try(lambda: response.readline(MAX_ANSWER_BYTES)):
            text = line.decode(errors="replace").strip()
            if not text or text.startswith((":", "event:", "id:", "retry:")):
                continue
            if not text.startswith("data:"):
                raise self.failed(f"sent a line that is not a server-sent event: {shown(text)}")
            data = text.removeprefix("data:").strip()
            if data == "[DONE]":
                return
            yield self._parsed(data.encode(), response.status)

    def failed(self, what: str) -> EngineFailed:
        """Returns an error that says what the server did, and reports the failure to the callback."""
        where = f"{self._method} {self._server.base_url}{self._path}"
        failure = EngineFailed(f"{where}: the server {what}")
        failure.status = None if self._response is None else self._response.status
        self._server.on_failure()
        return failure

    def _begin(self) -> http.client.HTTPResponse:
        """Sends the request and returns the head of the answer. Raises for every status but 2xx."""
        self._try(self._send)
        response: http.client.HTTPResponse = self._try(self._get_response)
        if 200 <= response.status < 300:
            return response
        text = self._read(response).decode(errors="replace")
        if _is_refusal(response.status) or response.status == self.also_refusal:
            raise Refused(_words(text) or f"HTTP {response.status} {response.reason}, without a word")
        raise self.failed(f"answered HTTP {response.status} {response.reason}: {shown(text)}")

    def _send(self) -> None:
        """Connects and sends the request. Raises `OSError`, or `Cut` if it was cut before."""
        body = self._body
        if body is not None and self.at_begin is not None:
            body = body | self.at_begin(self, body)
        text = None if body is None else json.dumps(body)
        try:
            self._send_text(text)
        except (BrokenPipeError, ConnectionResetError):
            # A server closes a connection that is idle for seconds, as it is if this process gets no
            # core meanwhile. Of a server that has died the second attempt tells.
            self.raise_if_cut()
            self._connection.close()
            self._send_text(text)

    def _send_text(self, text: str | None) -> None:
        self._connection.connect()
        with self._lock:
            self._socket = self._connection.sock
            self.raise_if_cut()
        path = self._server.parts.path + self._path
        self._connection.request(self._method, path, text, self._server.headers)

    def _get_response(self) -> http.client.HTTPResponse:
        self._response = self._connection.getresponse()
        return self._response

    def _read(self, response: http.client.HTTPResponse) -> bytes:
        body: bytes = self._try(lambda: response.read(MAX_ANSWER_BYTES + 1))
        if len(body) > MAX_ANSWER_BYTES:
            raise self.failed(f"answered with more than {MAX_ANSWER_BYTES >> 20} MiB")
        return body

    def _parsed(self, body: bytes, status: int) -> Any:
        try:
            return json.loads(body)
        except (ValueError, RecursionError):
            text = body.decode(errors="replace")
            raise self.failed(f"answered HTTP {status} with invalid JSON: {shown(text)}") from None

    def _try(self, act: Any) -> Any:
        try:
            return act()
        except TimeoutError:
            raise self.failed(f"sent nothing for {self._server.timeout_s:g} s (timeout_s)") from None
        except ConnectionRefusedError:
            raise self.failed("is not there: connection refused") from None
        except (OSError, http.client.HTTPException) as error:
            kind, words = type(error).__name__, str(error)
            reason = f"{kind}: {words}" if words else kind
            raise self.failed(f"broke the connection ({reason})") from None
        finally:
            if self._is_cut:
                raise Cut from None


def refusal_in(error: object) -> str | None:
    """Returns the words of an error that refuses a request, or None. vLLM sends it in a stream, behind
    a head that says 200."""
    if not isinstance(error, dict) or not _is_refusal(error.get("code")):
        return None
    return _message(error)


def _is_refusal(status: object) -> bool:
    """Returns whether an HTTP status concerns the request."""
    return isinstance(status, int) and 400 <= status < 500 and status not in NO_REFUSALS


def _words(text: str) -> str:
    """Returns the message of an error body: {"error": {"message": ...}}, {"detail": ...} and
    similar."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return text.strip()[:NUM_SHOWN]
    return _message(found)


def _message(found: object) -> str:
    for key in ("error", "detail", "message"):
        if isinstance(found, dict) and key in found:
            found = found[key]
    return found if isinstance(found, str) else json.dumps(found)
