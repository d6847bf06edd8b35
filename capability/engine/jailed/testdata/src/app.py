import json


async def app(scope, receive, send):
    """An ASGI application, for any of its servers."""
    if scope["type"] != "http":
        return
    body = b""
    while True:
        piece = await receive()
        body += piece.get("body", b"")
        if not piece.get("more_body"):
            break
    answer = {}
    if scope["method"] == "POST":
        answer = {"text": json.loads(body)["text"], "language": "Python", "path": scope["path"]}
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"application/json")]})
    await send({"type": "http.response.body", "body": json.dumps(answer).encode()})
