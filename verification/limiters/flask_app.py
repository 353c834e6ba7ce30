"""Flask-Limiter, by the STRATEGY of the environment. gunicorn runs it in one process: it counts in memory."""
import os, time

from flask import Flask
from flask_limiter import Limiter
from flask_limiter.util import get_remote_address

flask = Flask(__name__)
Limiter(get_remote_address, app=flask, default_limits=["100 per second"], strategy=os.environ["STRATEGY"], storage_uri="memory://")
record = os.open(os.environ["ARRIVALS"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)


@flask.get("/")
def get():
    return "ok"


def app(environ, start_response):
    """Writes down when a request came and how it was answered: milliseconds since 1970, and the status."""
    at = time.time_ns() // 1_000_000

    def start(status, *more):
        os.write(record, f"{at} {status[:3]}\n".encode())
        return start_response(status, *more)

    return flask(environ, start)
