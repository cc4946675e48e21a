# mypy: ignore-errors
"""A Streamable HTTP server of MCP (2025-11-25): `http_gateway.py PORT COMMAND…` runs the command for each session.

It keeps to the letter of the protocol: a session that is not known is answered 404, a request without one 400,
notifications and answers of the client 202. A request is answered with a stream of events, its answer last; what
the server says meanwhile that belongs to a call (progress, questions) goes there too, all else to the stream of
the session's GET. Sessions are lost when it ends.
"""

import json
import subprocess
import sys
import threading
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from queue import Empty, SimpleQueue

PORT, COMMAND = int(sys.argv[1]), sys.argv[2:]
HEADER = "Mcp-Session-Id"
sessions = {}


class GatewaySession:
    def __init__(self):
        self.id = uuid.uuid4().hex
        self.process = subprocess.Popen(COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.requests = {}
        self.events = SimpleQueue()
        self.lock = threading.Lock()
        threading.Thread(target=self.read, daemon=True).start()

    def read(self):
        for line in self.process.stdout:
            message = json.loads(line)
            if "method" not in message:
                stream = self.requests.pop(json.dumps(message.get("id")), None)
            elif message["method"] == "notifications/progress" or "id" in message:
                stream = next(iter(list(self.requests.values())), None)
            else:
                stream = None
            (stream or self.events).put(message)
        for stream in list(self.requests.values()):
            stream.put(None)
        sessions.pop(self.id, None)

    def request(self, message):
        stream = self.requests[json.dumps(message["id"])] = SimpleQueue()
        self.write(message)
        return stream

    def write(self, message):
        with self.lock:
            self.process.stdin.write(json.dumps(message).encode() + b"\n")
            self.process.stdin.flush()

    def end(self):
        sessions.pop(self.id, None)
        self.process.terminate()
        self.process.wait()


class GatewayConnection(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        message = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)))
        if message.get("method") == "initialize":
            session = GatewaySession()
            sessions[session.id] = session
        elif (session := self.session()) is None:
            return
        if "method" not in message or "id" not in message:
            session.write(message)
            self.answer(202)
            return
        stream = session.request(message)
        self.begin(session)
        while (said := stream.get()) is not None:
            self.event(said)
            if "method" not in said:
                break
        self.chunk(b"")

    def do_GET(self):
        if (session := self.session()) is None:
            return
        self.begin(session)
        while session.id in sessions:
            try:
                said = session.events.get(timeout=0.2)
            except Empty:
                continue
            try:
                self.event(said)
            except OSError:
                session.events.put(said)
                raise
        self.chunk(b"")

    def do_DELETE(self):
        if (session := self.session()) is not None:
            session.end()
            self.answer(200)

    def session(self):
        known = self.headers.get(HEADER)
        found = sessions.get(known)
        if found is None:
            self.answer(404 if known else 400)
        return found

    def answer(self, status):
        self.send_response(status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def begin(self, session):
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.send_header(HEADER, session.id)
        self.end_headers()

    def event(self, message):
        self.chunk(b"event: message\ndata: " + json.dumps(message).encode() + b"\n\n")

    def chunk(self, data):
        self.wfile.write(b"%x\r\n%b\r\n" % (len(data), data))
        self.wfile.flush()

    def log_message(self, *_):
        pass


class GatewayServer(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_):
        pass  # the client has gone


with GatewayServer(("127.0.0.1", PORT), GatewayConnection) as server:
    print("listens", flush=True)
    server.serve_forever()
