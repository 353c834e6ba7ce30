"""A producer with peewee."""

import json
import os
import sys

import peewee
from peewee import BigAutoField, BigIntegerField, ForeignKeyField, IntegerField, Model, SmallIntegerField, TextField
from playhouse.db_url import connect
from playhouse.postgres_ext import BinaryJSONField, DateTimeTZField

db = connect(os.environ["DATABASE_URL"])


class Call(Model):
    """What a producer may set. No field has a default, so that callq's hold."""

    id = BigAutoField()
    queue = TextField(null=True)
    task = TextField(null=True)
    key = TextField(null=True)
    call_data = BinaryJSONField(null=True, index=False)
    cost = BigIntegerField(null=True)
    priority = SmallIntegerField(null=True)
    run_at = DateTimeTZField(null=True)
    expires_at = DateTimeTZField(null=True)
    unique_key = TextField(null=True)
    max_attempts = IntegerField(null=True)

    class Meta:
        database = db
        table_name = "call_queue"


class MadeCall(Call):
    """A call to read, with what became of it."""

    status = TextField()
    attempts = IntegerField()

    class Meta:
        table_name = "call_queue"


class Attempt(Model):
    call = ForeignKeyField(MadeCall, backref="results")
    attempt = IntegerField()
    outcome = TextField()
    result = BinaryJSONField(null=True)

    class Meta:
        database = db
        table_name = "call_attempts"
        primary_key = peewee.CompositeKey("call", "attempt")


api = os.environ["API_URL"]


def data(path):
    return {"method": "POST", "url": api + path, "json": {"order": 4711}}


def call(path, unique_key=None):
    return {"queue": "payments", "key": "acct_42", "unique_key": unique_key, "call_data": data(path)}


def create():
    made = Call.create(queue="payments", key="acct_42", unique_key="order-4711", call_data={
        "method": "POST", "url": api + "/create", "json": {"order": 4711}})
    return {"id": made.id}


def bulk():
    rows = Call.insert_many([call(f"/bulk/{i}") for i in range(1000)]).returning(Call.id).execute()
    return {"ids": [row.id for row in rows]}


def transaction():
    with db.atomic():
        Call.create(**call("/committed"))
    try:
        with db.atomic():
            Call.create(**call("/rolled-back"))
            raise ValueError("not paid")
    except ValueError:
        pass
    return {}


def duplicates():
    calls = [call("/duplicates/1", "dup-1"), call("/duplicates/2", "dup-1"), call("/duplicates/3", "dup-2")]
    Call.insert_many(calls).on_conflict_ignore().execute()
    return {}


def upsert():
    ids = []
    with db.atomic():
        for path in ("/upsert/1", "/upsert/2"):
            Call.insert(**call(path, "up-1")).on_conflict_ignore().execute()
            ids.append(Call.select(Call.id).where(Call.queue == "payments", Call.unique_key == "up-1").get().id)
    return {"ids": ids}


def read(id):
    made = MadeCall.get_by_id(id)
    return {"status": made.status, "result": made.results.order_by(Attempt.attempt.desc()).get().result}


def stale(id):
    made = MadeCall.get_by_id(id)
    print(json.dumps({"loaded": made.id}), flush=True)
    sys.stdin.readline()
    made.priority = 9
    try:
        made.save()
    except peewee.DatabaseError as err:
        return {"sqlstate": err.__cause__.pgcode if err.__cause__ else err.orig.pgcode}
    return {"sqlstate": "ok"}


STEPS = {
    "version": lambda: {"version": peewee.__version__},
    "create": create, "bulk": bulk, "transaction": transaction, "duplicates": duplicates, "upsert": upsert,
    "read": read, "stale": stale,
    "diff": lambda: {"skip": "create_tables has no dry form, and callq migrates its tables itself"},
}

print(json.dumps(STEPS[sys.argv[1]](*sys.argv[2:])))
