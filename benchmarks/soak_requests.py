"""What `soak.py` asks, and what each answer must be: one well-formed ending, whatever its client does meanwhile."""

import asyncio
import json
import random
import socket
from collections.abc import AsyncIterator, Collection
from typing import Any, NamedTuple

import httpx

CHAT, MESSAGES, RESPONSES, EMBEDDINGS = "/v1/chat/completions", "/v1/messages", "/v1/responses", "/v1/embeddings"
REFUSALS = (429, 503, 529)
PATIENCE_SECONDS = 300.0
"""An answer of which nothing comes for so long is lost."""
SMALL_BUFFER_BYTES = 4096
FINAL = ("completed", "incomplete", "failed", "cancelled")
SCHEMA = {
    "type": "object",
    "properties": {"answer": {"enum": ["yes", "no"]}, "certain": {"type": "boolean"}},
    "required": ["answer", "certain"],
    "additionalProperties": False,
}
WORDS = ("the", "lime", "tree", "light", "of", "a", "river", "stone", "and", "wind", "over", "old", "hills", "where")


class Violation(Exception):
    """The server has broken a promise; the message says which."""


class Frame(NamedTuple):
    """One server-sent event; empty strings for what it has not."""

    name: str
    number: str
    data: str


class Client:
    """Sends requests of every kind, each on a connection of its own.

    Args:
        chance: decides what is asked.
        keys: one of them, at random, comes with each request.
    """

    def __init__(self, url: str, model: str, keys: list[str], chance: random.Random) -> None:
        self._model = model
        self._keys = keys
        self._chance = chance
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
        small = [(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL_BUFFER_BYTES)]
        transport = httpx.AsyncHTTPTransport(limits=limits)
        slow = httpx.AsyncHTTPTransport(limits=limits, socket_options=small)
        self._http = httpx.AsyncClient(base_url=url, transport=transport, timeout=PATIENCE_SECONDS)
        self._slow = httpx.AsyncClient(base_url=url, transport=slow, timeout=PATIENCE_SECONDS)
        self.kinds = {
            "stream": (self.stream, 20),
            "whole": (self.whole, 10),
            "cut": (self.cut, 20),
            "slow reader": (self.slow_reader, 6),
            "long prompt": (self.long_prompt, 6),
            "structured": (self.structured, 6),
            "resumed": (self.resumed, 12),
            "background": (self.background, 5),
            "messages": (self.messages, 8),
            "embeddings": (self.embeddings, 5),
            "deadline": (self.deadline, 8),
        }

    async def close(self) -> None:
        """Close what is open."""
        await self._http.aclose()
        await self._slow.aclose()

    def pick(self, among: Collection[str] | None = None) -> str:
        """A kind, by their weights; `among`: not any."""
        kinds = [kind for kind in self.kinds if among is None or kind in among]
        return self._chance.choices(kinds, [self.kinds[kind][1] for kind in kinds])[0]

    async def ask(self, kind: str) -> str:
        """Ask once; the word for how it ended.

        Raises:
            Violation: not as it should.
        """
        try:
            return await self.kinds[kind][0]()
        except httpx.TimeoutException:
            raise Violation(f"nothing came for {PATIENCE_SECONDS:g} s") from None
        except httpx.HTTPError as error:
            raise Violation(f"the connection broke: {error!r}") from None

    # ---- the kinds

    async def stream(self) -> str:
        """A chat, read to its end."""
        return await self._whole_stream(self._chat(stream=True))

    async def whole(self) -> str:
        """A chat in one piece."""
        answer = await self._http.post(CHAT, json=self._chat(), headers=self._headers())
        if (word := refusal(answer)) is None:
            expect(
                [choice["finish_reason"] for choice in answer.json()["choices"]] == ["length"], "no ending", answer.text
            )
        return word or "whole"

    async def cut(self) -> str:
        """A chat whose connection is cut: while it waits, at its first frames or later, streamed or not."""
        if self._chance.random() < 0.3:
            patience = self._chance.choice((0.0, 0.01, 0.1, 1.0))
            try:
                async with asyncio.timeout(patience):
                    return await self.whole()
            except TimeoutError:
                return "cut"
        body, limit = self._chat(stream=True), self._chance.choice((0, 1, 2, 5, 20))
        async with self._http.stream("POST", CHAT, json=body, headers=self._headers()) as answer:
            if (word := await streamed_refusal(answer)) is not None:
                return word
            count = 0
            async for frame in frames(answer):
                if count == limit:
                    return "cut"
                expect("error" not in json.loads(frame.data) if frame.data != "[DONE]" else True, "error", frame.data)
                count += 1
        return "whole"

    async def slow_reader(self) -> str:
        """A chat with large frames, whose reader takes a little at a time."""
        body = self._chat(stream=True, logprobs=True, top_logprobs=8)
        return await self._whole_stream(body, client=self._slow, pause=self._chance.choice((0.01, 0.05, 0.2)))

    async def long_prompt(self) -> str:
        """A chat over many words."""
        return await self._whole_stream(self._chat(stream=True, words=self._chance.randrange(400, 1200)))

    async def structured(self) -> str:
        """JSON by a schema."""
        form = {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA}}
        body = {**self._chat(), "max_tokens": 64, "ignore_eos": False, "response_format": form}
        answer = await self._http.post(CHAT, json=body, headers=self._headers())
        if (word := refusal(answer)) is not None:
            return word
        choice = answer.json()["choices"][0]
        if choice["finish_reason"] == "stop":
            value = json.loads(choice["message"]["content"])
            expect(value.keys() == {"answer", "certain"}, "not by its schema", answer.text)
        return "whole"

    async def resumed(self) -> str:
        """A chat whose connection is cut again and again, and which goes on behind the last frame that came."""
        body, seen, last = self._chat(stream=True), [], None
        headers = {**self._headers(), "x-limelight-resumable": "1", "x-limelight-grace": "60"}
        while True:
            given = headers if last is None else {**headers, "last-event-id": last}
            limit = self._chance.choice((1, 2, 5, 10, 1000))
            async with self._http.stream("POST", CHAT, json=body, headers=given) as answer:
                if last is None and (word := await streamed_refusal(answer)) is not None:
                    return word
                expect(answer.status_code == 200, "not resumed", f"{answer.status_code} after {last}")
                count = 0
                async for frame in frames(answer):
                    seen.append(frame)
                    last = frame.number
                    count += 1
                    if count == limit:
                        break
            if count < limit or seen[-1].data == "[DONE]":
                break
        numbers = [int(frame.number.rpartition(":")[2]) for frame in seen]
        expect(numbers == list(range(len(numbers))), "frames lost or sent twice", str(numbers))
        check_chat([frame.data for frame in seen])
        return "whole"

    async def background(self) -> str:
        """A response in the background, fetched until it has ended, then deleted."""
        body = {"model": self._model, "input": self._words(12), "background": True, "max_output_tokens": self._length()}
        headers = self._headers()
        answer = await self._http.post(RESPONSES, json=body, headers=headers)
        if (word := refusal(answer)) is not None:
            return word
        path = f"{RESPONSES}/{answer.json()['id']}"
        async with asyncio.timeout(PATIENCE_SECONDS):
            while (status := answer.json()["status"]) not in FINAL:
                await asyncio.sleep(0.5)
                answer = await self._http.get(path, headers=headers)
                expect(answer.status_code == 200, "lost", answer.text)
        await self._http.delete(path, headers=headers)
        if status == "failed":
            code = answer.json()["error"]["code"]
            expect(code in ("overloaded", "rate_limit_exceeded"), "failed", answer.text)
            return "refused"
        return "whole"

    async def messages(self) -> str:
        """A message of Anthropic's API, streamed."""
        body = {"model": self._model, "max_tokens": self._length(), "stream": True}
        body["messages"] = [{"role": "user", "content": self._words(20)}]
        async with self._http.stream("POST", MESSAGES, json=body, headers=self._headers()) as answer:
            if (word := await streamed_refusal(answer)) is not None:
                return word
            names = [frame.name async for frame in frames(answer) if frame.name != "ping"]
        expect(names[0] == "message_start" and names[-1] == "message_stop", "no ending", str(names[-3:]))
        once = [names.count(name) for name in ("message_start", "message_delta", "message_stop", "error")]
        expect(once == [1, 1, 1, 0], "not one ending", str(once))
        return "whole"

    async def embeddings(self) -> str:
        """Vectors of two texts."""
        body = {"model": self._model, "input": [self._words(10), self._words(30)]}
        answer = await self._http.post(EMBEDDINGS, json=body, headers=self._headers())
        if (word := refusal(answer)) is None:
            expect([entry["index"] for entry in answer.json()["data"]] == [0, 1], "not two vectors", answer.text[:200])
        return word or "whole"

    async def deadline(self) -> str:
        """A chat that has little time."""
        name = self._chance.choice(("max_queue_ms", "max_ttft_ms", "max_total_ms"))
        body = {**self._chat(stream=True), name: self._chance.choice((20, 200, 1000, 4000))}
        return await self._whole_stream(body)

    # ---- what they share

    async def _whole_stream(
        self, body: dict[str, Any], client: httpx.AsyncClient | None = None, pause: float = 0
    ) -> str:
        request = (client or self._http).stream("POST", CHAT, json=body, headers=self._headers())
        async with request as answer:
            if (word := await streamed_refusal(answer)) is not None:
                return word
            data = []
            async for frame in frames(answer):
                data.append(frame.data)
                if pause and len(data) < 40:
                    await asyncio.sleep(pause)
        return check_chat(data)

    def _headers(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self._chance.choice(self._keys)}"}

    def _chat(self, words: int | None = None, **fields: Any) -> dict[str, Any]:
        content = self._words(words or self._chance.randrange(5, 60))
        body = {"model": self._model, "messages": [{"role": "user", "content": content}]}
        return {**body, "max_tokens": self._length(), "ignore_eos": True, **fields}

    def _words(self, number: int) -> str:
        return " ".join(self._chance.choices(WORDS, k=number))

    def _length(self) -> int:
        return self._chance.choice((1, 8, 16, 32, 64, 96))


def expect(condition: bool, what: str, seen: str) -> None:
    """Raise `Violation` unless the condition holds."""
    if not condition:
        raise Violation(f"{what}: {seen[:300]}")


async def frames(answer: httpx.Response) -> AsyncIterator[Frame]:
    """The events of a stream; comments and what nothing ends are left out."""
    name = number = data = ""
    async for line in answer.aiter_lines():
        field, _, value = line.partition(": ")
        if field == "event":
            name = value
        elif field == "id":
            number = value
        elif field == "data":
            data = value
        elif not line and data:
            yield Frame(name, number, data)
            name = number = data = ""
    expect(not data, "the stream ends within a frame", data)


def check_chat(data: list[str]) -> str:
    """Raise `Violation` unless these are the events of one whole chat: one finish reason, and `[DONE]` last."""
    expect(bool(data) and data[-1] == "[DONE]" and data.count("[DONE]") == 1, "not one [DONE], last", str(data[-2:]))
    events = [json.loads(event) for event in data[:-1]]
    errors = [event["error"] for event in events if "error" in event]
    if errors:
        expect(len(errors) == 1 and "error" in events[-1], "not one error, last", str(errors))
        if errors[0].get("code") == "deadline_exceeded":  # the status had gone out, after the wait for headers
            return "too late"
        expect(errors[0].get("code") in ("engine_not_running", "overloaded", "draining"), "failed", str(errors[0]))
        return "ended by the server"
    reasons = [choice["finish_reason"] for event in events for choice in event["choices"] if choice["finish_reason"]]
    expect(len(reasons) == 1, "not one finish reason", str(reasons))
    return "whole"


async def streamed_refusal(answer: httpx.Response) -> str | None:
    """As `refusal`, of a stream."""
    if answer.status_code == 200:
        return None
    await answer.aread()
    return refusal(answer)


def refusal(answer: httpx.Response) -> str | None:
    """The word for an answer that is a well-formed refusal; None for a good one.

    Raises:
        Violation: it is neither.
    """
    if answer.status_code == 200:
        return None
    try:
        error = answer.json()["error"]
        expect(bool(error["message"] and error["type"]), "an error without its words", answer.text)
    except (ValueError, KeyError, TypeError):
        raise Violation(f"a malformed error, {answer.status_code}: {answer.text[:300]}") from None
    if answer.status_code in REFUSALS:
        wait = answer.headers.get("retry-after", "")
        expect(wait.isdigit() and int(wait) >= 1, "no Retry-After", f"{answer.status_code} {wait!r} {answer.text}")
        return "refused"
    if answer.status_code == 504:
        expect(answer.headers.get("x-should-retry") == "false", "504 invites to try again", answer.text)
        return "too late"
    raise Violation(f"{answer.status_code}: {answer.text[:300]}")
