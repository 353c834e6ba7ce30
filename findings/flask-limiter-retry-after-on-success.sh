#!/usr/bin/env bash
# Flask-Limiter 3.3.0 (Debian 3.3.0-1), with its headers on: every answer says Retry-After, not only refusals.
#
# Guess: Retry-After comes with a 429. A client need look for it only to learn whether it has to wait.
# Seen: the first 200 of a window of a minute says to come back in a minute, with 29 of 30 requests left. So do a 302 and a 503 of
# the app's own. The extension sets the header after each request to the end of the window, whatever the status.
#
# On a 302 and a 503 the header has a meaning of its own: a client that heeds it follows the redirect, or tries again, a minute
# late.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
apt-get download -qq python3-flask-limiter=3.3.0-1 python3-limits python3-flask python3-werkzeug python3-jinja2 python3-markupsafe \
    python3-itsdangerous python3-click python3-deprecated python3-wrapt python3-packaging python3-pkg-resources python3-ordered-set \
    python3-rich python3-markdown-it python3-mdurl python3-pygments python3-typing-extensions 2>/dev/null
for package in *.deb; do dpkg -x "$package" root; done
cat >seen.py <<'PY'
from flask import Flask, redirect
from flask_limiter import Limiter
from flask_limiter.util import get_remote_address

app = Flask(__name__)
Limiter(get_remote_address, app=app, application_limits=["30 per minute"], headers_enabled=True, storage_uri="memory://")
app.get("/")(lambda: "ok")
app.get("/moved", endpoint="moved")(lambda: redirect("/"))
app.get("/closed", endpoint="closed")(lambda: ("closed", 503))
client = app.test_client()
for path in ["/", "/moved", "/closed"]:
    answer = client.get(path)
    wait = int(answer.headers.get("Retry-After", 0))
    print(answer.status_code, "remaining:", answer.headers["X-RateLimit-Remaining"], "Retry-After above 40:", wait > 40)
print("the next 27:", {client.get("/").status_code for _ in range(27)}, "then:", client.get("/").status_code)
PY
seen=$(PYTHONPATH=root/usr/lib/python3/dist-packages /usr/bin/python3 -S seen.py)
echo "$seen"
want='200 remaining: 29 Retry-After above 40: True
302 remaining: 28 Retry-After above 40: True
503 remaining: 27 Retry-After above 40: True
the next 27: {200} then: 429'
[ "$seen" = "$want" ] || { echo "this has changed; it was:"; echo "$want"; exit 1; }
