"""Reads a streamed answer over a bad connection: after each break the stream goes on behind the last frame that came.

limelight serve                                       (in another terminal)
python examples/resume_stream.py "Name three colours"
python examples/resume_stream.py "Name three colours" http://127.0.0.1:8080 --cut-after 5

With --cut-after N the connection is cut after every N frames, to see that nothing is lost.
"""

import argparse
import json
import time
from collections.abc import Iterator

import httpx

MAX_ATTEMPTS = 5
"""Connections in a row that may bring nothing."""


def frames(response: httpx.Response) -> Iterator[tuple[str, str]]:
    """Id and data of each frame; lines that begin with a colon are comments."""
    frame_id, data = "", ""
    for line in response.iter_lines():
        if line.startswith("id: "):
            frame_id = line.removeprefix("id: ")
        elif line.startswith("data: "):
            data = line.removeprefix("data: ")
        elif not line and data:
            yield frame_id, data
            data = ""


def resumed(client: httpx.Client, body: dict[str, object], cut_after: int | None) -> Iterator[str]:
    """The data of every frame, once each, whatever happens to the connection."""
    headers = {"x-limelight-resumable": "1", "x-limelight-grace": "60"}
    attempts = 0
    while attempts < MAX_ATTEMPTS:
        try:
            with client.stream("POST", "/v1/chat/completions", json=body, headers=headers) as response:
                if response.is_error:
                    raise SystemExit(json.loads(response.read())["error"]["message"])
                for number, (frame_id, data) in enumerate(frames(response), start=1):
                    attempts = 0
                    headers["last-event-id"] = frame_id  # the same request with this header is not run again
                    if data == "[DONE]":
                        return
                    yield data
                    if number == cut_after:
                        break
        except httpx.TransportError:
            time.sleep(0.2)
        attempts += 1
    raise SystemExit("the connection broke too often")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("question", nargs="?", default="Say hello.")
    parser.add_argument("address", nargs="?", default="http://127.0.0.1:8000")
    parser.add_argument("--cut-after", type=int, metavar="N")
    options = parser.parse_args()
    with httpx.Client(base_url=options.address, timeout=60, trust_env=False) as client:
        model = client.get("/v1/models").json()["data"][0]["id"]
        body = {"model": model, "messages": [{"role": "user", "content": options.question}], "stream": True}
        for data in resumed(client, body, options.cut_after):
            frame = json.loads(data)
            if "error" in frame:
                raise SystemExit(frame["error"]["message"])
            for choice in frame["choices"]:
                print(choice["delta"].get("content") or "", end="", flush=True)
    print()


if __name__ == "__main__":
    try:
        main()
    except httpx.ConnectError as error:
        raise SystemExit(f"no server answers ({error}); start one: limelight serve") from None
