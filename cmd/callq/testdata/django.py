# What an application has around the Python of docs/producers.md, and what the page says of it.
import os

import django
from django.conf import settings

settings.configure(
    INSTALLED_APPS=["__main__"],
    DATABASES={"default": {"ENGINE": "django.db.backends.postgresql", "NAME": os.environ["PGDATABASE"]}},
)
django.setup()
from django.db import IntegrityError, connection, models, transaction

connection.force_debug_cursor = True

# the page's block

print(connection.queries[-1]["sql"])

twice = {"queue": "payments", "unique_key": "twice"}
with transaction.atomic():
    first = Call.objects.create(**twice)
    try:
        with transaction.atomic():
            Call.objects.create(**twice)
        raise AssertionError("create made a duplicate")
    except IntegrityError:
        pass
    Call.objects.bulk_create([Call(**twice)], ignore_conflicts=True)
    with connection.cursor() as cursor:
        cursor.execute("SELECT id, duplicate FROM enqueue_call(queue => %s, unique_key => %s)", list(twice.values()))
        assert cursor.fetchone() == (first.id, True)
    try:
        Call.objects.create(**twice)
    except IntegrityError:
        pass
    try:
        Call.objects.filter(**twice).count()
        raise AssertionError("the transaction went on")
    except transaction.TransactionManagementError:
        pass
assert not Call.objects.filter(**twice).exists(), "not rolled back"
