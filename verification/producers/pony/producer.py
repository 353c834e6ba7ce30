"""A producer with Pony."""

import json
import os
import sys
from datetime import datetime

import pony
from pony.orm import Database, Json, Optional, PrimaryKey, db_session, flush, select
from pony.orm.core import DatabaseError

db = Database()


class Call(db.Entity):
    """What a producer may set. nullable: else Pony sends '' for every string that is not set."""

    _table_ = "call_queue"
    id = PrimaryKey(int, size=64, auto=True)
    queue = Optional(str, nullable=True)
    task = Optional(str, nullable=True)
    key = Optional(str, nullable=True)
    call_data = Optional(Json)
    cost = Optional(int, size=64)
    priority = Optional(int, size=16)
    run_at = Optional(datetime)
    expires_at = Optional(datetime)
    unique_key = Optional(str, nullable=True)
    max_attempts = Optional(int)


db.bind("postgres", os.environ["DATABASE_URL"])
db.generate_mapping(check_tables=False)


api = os.environ["API_URL"]


def data(path):
    return {"method": "POST", "url": api + path, "json": {"order": 4711}}


def call(path, unique_key=None):
    return Call(queue="payments", key="acct_42", unique_key=unique_key, call_data=data(path))


@db_session
def create():
    made = Call(queue="payments", key="acct_42", unique_key="order-4711", call_data={
        "method": "POST", "url": api + "/create", "json": {"order": 4711}})
    flush()
    return {"id": made.id}


@db_session
def bulk():
    calls = [call(f"/bulk/{i}") for i in range(1000)]
    flush()
    return {"ids": [c.id for c in calls]}


def transaction():
    with db_session:
        call("/committed")
    try:
        with db_session:
            call("/rolled-back")
            flush()
            raise ValueError("not paid")
    except ValueError:
        pass
    return {}


@db_session
def duplicates():
    """It has no ON CONFLICT: it searches first."""
    for path, key in (("/duplicates/1", "dup-1"), ("/duplicates/2", "dup-1"), ("/duplicates/3", "dup-2")):
        if not select(c.id for c in Call if c.queue == "payments" and c.unique_key == key).first():
            call(path, key)
            flush()
    return {}


@db_session
def upsert():
    ids = []
    for path in ("/upsert/1", "/upsert/2"):
        id = select(c.id for c in Call if c.queue == "payments" and c.unique_key == "up-1").first()
        if id is None:
            made = call(path, "up-1")
            flush()
            id = made.id
        ids.append(id)
    return {"ids": ids}


@db_session
def read(id):
    id = int(id)
    status = db.get("SELECT status FROM call_queue WHERE id = $id")
    result = db.select("SELECT result FROM call_attempts WHERE call_id = $id ORDER BY attempt DESC LIMIT 1")[0]
    return {"status": status, "result": json.loads(result) if isinstance(result, str) else result}


def stale(id):
    try:
        with db_session(optimistic=False):
            made = Call[int(id)]
            fields = made.to_dict(exclude="id")
        print(json.dumps({"loaded": made.id}), flush=True)
        sys.stdin.readline()
        with db_session(optimistic=False):
            Call[int(id)].set(**{**fields, "priority": 9})
    except DatabaseError as err:
        cause = getattr(err, "original_exc", None) or err.__cause__
        return {"sqlstate": cause.pgcode}
    return {"sqlstate": "ok"}


STEPS = {
    "version": lambda: {"version": pony.__version__},
    "create": create, "bulk": bulk, "transaction": transaction, "duplicates": duplicates, "upsert": upsert,
    "read": read, "stale": stale,
    "diff": lambda: {"skip": "it compares no model with the database"},
}

print(json.dumps(STEPS[sys.argv[1]](*sys.argv[2:])))
