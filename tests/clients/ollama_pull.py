"""Has a server download models from a stand-in for the hub, and remove them, by Ollama's own Python client.

usage: ollama_pull.py PROGRAM

Run by `cargo xtask clients`.
"""
import hashlib
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import ollama
from checks import check, raises

COMMIT = "0123456789abcdef0123456789abcdef01234567"
FILES = {"org/small": os.urandom(300_000), "org/slow": os.urandom(6_000_000)}
FILE = "model-Q8_0.gguf"


class Hub(BaseHTTPRequestHandler):
    """Two models of one file each; of org/slow it sends 64 KiB in 20 ms."""

    protocol_version = "HTTP/1.1"
    began: list[int] = []

    def log_message(self, *_: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self.answer(False)

    def do_GET(self) -> None:
        self.answer(True)

    def answer(self, with_body: bool) -> None:
        parts = self.path.split("/")
        if parts[1] == "api":
            known = "/".join(parts[3:5]) in FILES
            body = json.dumps({"sha": COMMIT, "siblings": [{"rfilename": FILE}]}).encode()
            return self.send(200 if known else 404, body, {}, with_body)
        body = FILES["/".join(parts[1:3])]
        headers = {"ETag": f'"{hashlib.sha256(body).hexdigest()}"', "X-Repo-Commit": COMMIT, "Accept-Ranges": "bytes"}
        if not with_body or "Range" not in self.headers:
            return self.send(200, body, headers, with_body)
        start = int(self.headers["Range"].removeprefix("bytes=").split("-")[0])
        Hub.began.append(start)
        headers["Content-Range"] = f"bytes {start}-{len(body) - 1}/{len(body)}"
        self.send(206, body[start:], headers, with_body)

    def send(self, status: int, body: bytes, headers: dict[str, str], with_body: bool) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        try:
            for at in range(0, len(body) if with_body else 0, 1 << 16):
                self.wfile.write(body[at : at + (1 << 16)])
                if "slow" in self.path:
                    time.sleep(0.02)
        except OSError:
            self.close_connection = True  # Whoever asked has gone.


def serve(program: str, hub: str, cache: str, *flags: str) -> tuple[subprocess.Popen, ollama.Client]:
    env = {**os.environ, "HF_ENDPOINT": hub, "HF_HUB_CACHE": cache, "HF_HUB_OFFLINE": "0"}
    server = subprocess.Popen([program, "serve", "demo", "--port", "0", *flags], env=env, stderr=subprocess.PIPE, text=True)
    line = next(line for line in server.stderr if "http://127." in line)
    threading.Thread(target=lambda: [None for _ in server.stderr], daemon=True).start()
    return server, ollama.Client(host=line[line.index("http://127.") :].strip().removesuffix("/v1"), timeout=60)


def pulls(client: ollama.Client, cache: pathlib.Path) -> None:
    error = ollama.ResponseError
    lines = list(client.pull("org/small", stream=True))
    sizes = [line for line in lines if line.digest]
    whole = len(FILES["org/small"])
    check("a download tells of its progress", sizes[-1].completed == sizes[-1].total == whole, lines)
    check("and of its end", lines[-1].status == "success", lines)
    file = cache / "models--org--small" / "snapshots" / COMMIT / FILE
    check("the model is in the cache", file.read_bytes() == FILES["org/small"])
    check("what is there is not downloaded again", client.pull("org/small").status == "success")
    raises("an unknown model is 404", error, lambda: client.pull("org/nothing"), 404)
    raises("a name that is none is refused", error, lambda: client.pull("../up"), 400)
    check("a model is removed", client.delete("org/small").status == "success" and not file.exists())
    raises("once", error, lambda: client.delete("org/small"), 404)
    raises("what is served stays", error, lambda: client.delete("demo"), 400)


def ends(client: ollama.Client) -> None:
    stream = client.pull("org/slow", stream=True)
    for line in stream:
        if line.completed and line.completed > 1_000_000:
            break
    stream.close()
    again = [line for line in client.pull("org/slow", stream=True) if line.digest]
    check("a client that goes away ends its download, and the next goes on", 0 < again[0].completed < again[0].total, again[0])
    check("from where it was", again[-1].completed == again[-1].total and Hub.began[-1] > 0, Hub.began)


def main() -> None:
    print("ollama, pull and delete")
    hub = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=hub.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{hub.server_port}"
    with tempfile.TemporaryDirectory() as cache:
        for flags in [["--allow-pull"], []]:
            server, client = serve(sys.argv[1], address, cache, *flags)
            try:
                if flags:
                    pulls(client, pathlib.Path(cache))
                    ends(client)
                else:
                    raises("nobody may unless the server says so", ollama.ResponseError, lambda: client.pull("org/small"), 403)
            finally:
                server.terminate()
                server.wait(20)


if __name__ == "__main__":
    main()
