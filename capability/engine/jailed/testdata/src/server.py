import http.server
import json
import os

from glasshouse_call import CallError, call


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        answer = {"text": asked.get("text"), "language": "Python", "path": self.path}
        if "call" in asked:
            try:
                answer["output"] = call(asked["call"], asked.get("input"))
            except CallError as e:
                answer["kind"], answer["text"] = e.kind, e.message
        body = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


http.server.ThreadingHTTPServer(("127.0.0.1", int(os.environ["PORT"])), Handler).serve_forever()
