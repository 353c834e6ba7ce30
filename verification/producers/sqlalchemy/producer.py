"""A producer with SQLAlchemy."""

import json
import os
import sys

import sqlalchemy
from sqlalchemy import BigInteger, Column, DateTime, ForeignKey, Integer, SmallInteger, Text, create_engine, func, text
from sqlalchemy.dialects.postgresql import JSONB, insert
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session, declarative_base, deferred, relationship

engine = create_engine(os.environ["DATABASE_URL"])
Base = declarative_base()


class Call(Base):
    """A call. A producer sets no more than the columns up to max_attempts; the others are callq's."""

    __tablename__ = "call_queue"
    id = Column(BigInteger, primary_key=True)
    queue = Column(Text)
    task = Column(Text)
    key = Column(Text)
    call_data = deferred(Column(JSONB))  # a producer may not read it back
    cost = Column(BigInteger)
    priority = Column(SmallInteger)
    run_at = Column(DateTime(timezone=True))
    expires_at = Column(DateTime(timezone=True))
    unique_key = Column(Text)
    max_attempts = Column(Integer)

    # To read only. A server default: an INSERT that does not set them leaves them out.
    status = Column(Text, server_default=text("'new'"))
    attempts = Column(Integer, server_default=text("0"))
    results = relationship("Attempt", order_by="Attempt.attempt", viewonly=True)


class Attempt(Base):
    __tablename__ = "call_attempts"
    call_id = Column(BigInteger, ForeignKey("call_queue.id"), primary_key=True)
    attempt = Column(Integer, primary_key=True)
    outcome = Column(Text)
    result = Column(JSONB)


api = os.environ["API_URL"]


def data(path):
    return {"method": "POST", "url": api + path, "json": {"order": 4711}}


def call(path, unique_key=None):
    return Call(queue="payments", key="acct_42", unique_key=unique_key, call_data=data(path))


def create():
    with Session(engine) as session:
        made = Call(queue="payments", key="acct_42", unique_key="order-4711", call_data={
            "method": "POST", "url": api + "/create", "json": {"order": 4711}})
        session.add(made)
        session.commit()
        return {"id": made.id}


def bulk():
    with Session(engine) as session:
        calls = [call(f"/bulk/{i}") for i in range(1000)]
        session.add_all(calls)
        session.flush()
        ids = [c.id for c in calls]
        session.commit()
    return {"ids": ids}


def transaction():
    with Session(engine) as session, session.begin():
        session.add(call("/committed"))
    try:
        with Session(engine) as session, session.begin():
            session.add(call("/rolled-back"))
            session.flush()
            raise ValueError("not paid")
    except ValueError:
        pass
    return {}


def duplicates():
    calls = [("/duplicates/1", "dup-1"), ("/duplicates/2", "dup-1"), ("/duplicates/3", "dup-2")]
    with Session(engine) as session, session.begin():
        session.execute(insert(Call).on_conflict_do_nothing(), [
            {"queue": "payments", "unique_key": key, "call_data": data(path)} for path, key in calls])
    return {}


def upsert():
    with Session(engine) as session, session.begin():
        statement = insert(Call).on_conflict_do_nothing()
        for path in ("/upsert/1", "/upsert/2"):
            session.execute(statement.values(queue="payments", unique_key="up-1", call_data=data(path)))
        found = session.query(Call.id).filter_by(queue="payments", unique_key="up-1").one()
    return {"ids": [found.id, found.id]}


def read(id):
    with Session(engine) as session:
        made = session.get(Call, id)
        return {"status": made.status, "result": made.results[-1].result}


def stale(id):
    with Session(engine) as session:
        made = session.get(Call, id)
        print(json.dumps({"loaded": made.id}), flush=True)
        session.expire_on_commit = False
        session.commit()
        sys.stdin.readline()
        made.priority = 9
        try:
            session.commit()
        except DBAPIError as err:
            return {"sqlstate": err.orig.pgcode}
    return {"sqlstate": "ok"}


def include_object(object, name, type_, reflected, compare_to):
    """For Alembic's env.py: callq migrates its tables itself."""
    return not (type_ == "table" and name in ("call_queue", "call_attempts"))


def diff():
    """What `alembic revision --autogenerate` would write."""
    from alembic.autogenerate import produce_migrations
    from alembic.migration import MigrationContext

    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"include_object": include_object})
        script = produce_migrations(context, Base.metadata)
    tables = set()
    for operation in script.upgrade_ops.ops:
        tables.add(operation.table_name)
    return {"tables": sorted(tables)}


STEPS = {
    "version": lambda: {"version": sqlalchemy.__version__},
    "create": create, "bulk": bulk, "transaction": transaction, "duplicates": duplicates, "upsert": upsert,
    "read": read, "stale": stale, "diff": diff,
}

print(json.dumps(STEPS[sys.argv[1]](*sys.argv[2:])))
