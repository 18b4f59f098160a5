"""Reads a streamed answer with the standard library alone: what the frames on the wire look like.

limelight serve                                    (in another terminal)
python examples/sse_client.py "Name three colours"
python examples/sse_client.py "Name three colours" http://127.0.0.1:8080
"""

import json
import sys
import urllib.error
import urllib.request


def main() -> None:
    question = sys.argv[1] if len(sys.argv) > 1 else "Say hello."
    address = sys.argv[2] if len(sys.argv) > 2 else "http://127.0.0.1:8000"
    with urllib.request.urlopen(f"{address}/v1/models") as response:
        model = json.load(response)["data"][0]["id"]
    body = {"model": model, "messages": [{"role": "user", "content": question}], "stream": True}
    request = urllib.request.Request(
        f"{address}/v1/chat/completions", json.dumps(body).encode(), {"content-type": "application/json"}
    )
    with urllib.request.urlopen(request) as response:
        for line in response:  # frames are `data: ...` lines with an empty line after each; `:` begins a keep-alive
            if not line.startswith(b"data: "):
                continue
            payload = line.removeprefix(b"data: ").strip()
            if payload == b"[DONE]":
                break
            frame = json.loads(payload)
            if "error" in frame:
                raise SystemExit(frame["error"]["message"])
            for choice in frame["choices"]:
                print(choice["delta"].get("content") or "", end="", flush=True)
    print()


if __name__ == "__main__":
    try:
        main()
    except urllib.error.HTTPError as error:  # its body is {"error": {"message": ...}}
        raise SystemExit(json.load(error)["error"]["message"]) from None
    except urllib.error.URLError as error:
        raise SystemExit(f"no server answers ({error.reason}); start one: limelight serve") from None
