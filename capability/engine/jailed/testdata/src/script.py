import json
import sys

asked = json.load(sys.stdin)
print("thinking", file=sys.stderr)
json.dump({"text": asked["text"][::-1], "language": "Python"}, sys.stdout)
