"""A producer with Django."""

import json
import os
import sys
from urllib.parse import urlsplit

import django
from django.conf import settings

url = urlsplit(os.environ["DATABASE_URL"])
settings.configure(
    DATABASES={"default": {
        "ENGINE": "django.db.backends.postgresql", "NAME": url.path[1:], "USER": url.username,
        "PASSWORD": url.password, "HOST": url.hostname, "PORT": url.port,
    }},
    USE_TZ=True,
)
django.setup()

from django.db import DatabaseError, connection, models, transaction  # noqa: E402


class CallFields(models.Model):
    """What a producer may set. No field has a default, so that callq's hold."""

    id = models.BigAutoField(primary_key=True)
    queue = models.TextField(null=True)
    task = models.TextField(null=True)
    key = models.TextField(null=True)
    call_data = models.JSONField(null=True)
    cost = models.BigIntegerField(null=True)
    priority = models.SmallIntegerField(null=True)
    run_at = models.DateTimeField(null=True)
    expires_at = models.DateTimeField(null=True)
    unique_key = models.TextField(null=True)
    max_attempts = models.IntegerField(null=True)

    class Meta:
        abstract = True
        app_label = "shop"


class Call(CallFields):
    class Meta:
        managed = False
        db_table = "call_queue"
        app_label = "shop"


class MadeCall(CallFields):
    """A call to read, with what became of it."""

    status = models.TextField()
    attempts = models.IntegerField()

    class Meta:
        managed = False
        db_table = "call_queue"
        app_label = "shop"


class Attempt(models.Model):
    call = models.ForeignKey(MadeCall, models.DO_NOTHING, primary_key=True, related_name="results")
    attempt = models.IntegerField()
    outcome = models.TextField()
    result = models.JSONField(null=True)

    class Meta:
        managed = False
        db_table = "call_attempts"
        app_label = "shop"


api = os.environ["API_URL"]


def data(path):
    return {"method": "POST", "url": api + path, "json": {"order": 4711}}


def call(path, unique_key=None):
    return Call(queue="payments", key="acct_42", unique_key=unique_key, call_data=data(path))


def create():
    made = Call.objects.create(queue="payments", key="acct_42", unique_key="order-4711", call_data={
        "method": "POST", "url": api + "/create", "json": {"order": 4711}})
    return {"id": made.id}


def bulk():
    calls = Call.objects.bulk_create([call(f"/bulk/{i}") for i in range(1000)])
    return {"ids": [c.id for c in calls]}


def in_transaction():
    with transaction.atomic():
        call("/committed").save()
    try:
        with transaction.atomic():
            call("/rolled-back").save()
            raise ValueError("not paid")
    except ValueError:
        pass
    return {}


def duplicates():
    calls = [call("/duplicates/1", "dup-1"), call("/duplicates/2", "dup-1"), call("/duplicates/3", "dup-2")]
    calls = Call.objects.bulk_create(calls, ignore_conflicts=True)
    return {"ids": [c.id for c in calls]}


@transaction.atomic
def upsert():
    calls = [
        Call.objects.only("id").get_or_create(queue="payments", unique_key="up-1", defaults={"call_data": data(path)})[0]
        for path in ("/upsert/1", "/upsert/2")
    ]
    return {"ids": [c.id for c in calls]}


def read(id):
    made = MadeCall.objects.get(id=id)
    return {"status": made.status, "result": made.results.order_by("-attempt")[0].result}


def stale(id):
    made = MadeCall.objects.get(id=id)
    print(json.dumps({"loaded": made.id}), flush=True)
    sys.stdin.readline()
    made.priority = 9
    try:
        made.save()
    except DatabaseError as err:
        return {"sqlstate": err.__cause__.pgcode}
    return {"sqlstate": "ok"}


def diff():
    """What makemigrations would write: managed = False leaves a table alone."""
    from django.apps import apps
    from django.db.migrations.autodetector import MigrationAutodetector
    from django.db.migrations.state import ModelState, ProjectState

    state = ProjectState()
    for model in (Call, MadeCall, Attempt):
        state.add_model(ModelState.from_model(model))
    changes = MigrationAutodetector(ProjectState(), state).changes(graph=Graph())
    tables = set()
    for migration in changes.get("shop", []):
        for operation in migration.operations:
            if operation.options.get("managed", True):
                tables.add(operation.options["db_table"])
    return {"tables": sorted(tables)}


class Graph:
    """A history of migrations that is empty."""

    def leaf_nodes(self, app=None):
        return []


STEPS = {
    "version": lambda: {"version": django.get_version()},
    "create": create, "bulk": bulk, "transaction": in_transaction, "duplicates": duplicates, "upsert": upsert,
    "read": read, "stale": stale, "diff": diff,
}

print(json.dumps(STEPS[sys.argv[1]](*sys.argv[2:])))
connection.close()
