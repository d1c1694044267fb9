"""
What a store holds, read without any returner: by the system's own client or from the files themselves.

Every store is read into one map of cells: a path such as ("returns", jid, minion, "full_ret", 0) to a value. Texts that
are JSON are read as JSON, since spacing is no content; ("text", …) marks those that are not. Times of writing are left out.
"""

import json
import os

import msgpack


class Text(str):
    """A text that is not JSON where JSON belongs."""


def document(text):
    """The document in a column, whichever type the column has."""
    if text is None or not isinstance(text, (str, bytes)):
        return text
    try:
        return json.loads(text)
    except ValueError:
        return Text(text)


def _table(rows, keys, documents, ignored=("alter_time", "date", "added")):
    """Cells of rows: those with the same key are numbered in the order they stand in."""
    cells, numbers = {}, {}
    for table, row in rows:
        key = (table,) + tuple(str(row[name]) for name in keys[table])
        number = numbers[key] = numbers.get(key, -1) + 1
        for column, value in row.items():
            if column in keys[table] or column in ignored:
                continue
            cells[key + (column, number)] = document(value) if column in documents else value
    return cells


SQL_KEYS = {"returns": ("jid", "id"), "loads": ("jid",), "events": ("tag",)}
SQL_DOCUMENTS = ("return", "full_ret", "load", "data", "extra")


def _sql(connection, documents=SQL_DOCUMENTS):
    rows = []
    for table, name in (("returns", "salt_returns"), ("loads", "jids"), ("events", "salt_events")):
        cursor = connection.cursor()
        try:
            cursor.execute(f"SELECT * FROM {name}")
        except Exception:
            # Events are not every store's business.
            if table != "events":
                raise
            continue
        columns = [column[0] for column in cursor.description]
        found = [dict(zip(columns, row)) for row in cursor.fetchall()]
        for row in found:
            if table == "events":
                row.pop("id")
        rows.extend((table, row) for row in found)
    return _table(rows, SQL_KEYS, documents)


def mysql(opts):
    import pymysql

    connection = pymysql.connect(
        host=opts["mysql.host"], port=opts["mysql.port"], user=opts["mysql.user"], password=opts["mysql.pass"],
        database=opts["mysql.db"], charset="utf8mb4",
    )
    return _sql(connection)


def _postgresql(opts, prefix, password, documents):
    import psycopg2

    connection = psycopg2.connect(
        host=opts[prefix + "host"], port=opts[prefix + "port"], user=opts[prefix + "user"],
        password=opts[prefix + password], dbname=opts[prefix + "db"],
    )
    connection.autocommit = True
    return _sql(connection, documents)


def pgjsonb(opts):
    return _postgresql(opts, "returner.pgjsonb.", "pass", documents=())  # The driver reads jsonb by itself.


def postgres(opts):
    return _postgresql(opts, "returner.postgres.", "passwd", SQL_DOCUMENTS)


def sqlite3(opts):
    import sqlite3 as driver

    return _sql(driver.connect(opts["sqlite3.database"]))


def redis(opts):
    import redis as driver

    server = driver.Redis(host=opts["redis.host"], port=opts["redis.port"], db=opts["redis.db"])
    cells = {}
    for key in server.scan_iter(count=1000):
        name = key.decode("utf-8", "surrogateescape")
        kind = server.type(key)
        expires = "expires" if server.ttl(key) > 0 else "stays"
        if name.startswith("returnerd:"):
            continue
        if kind == b"hash":
            for field, value in server.hgetall(key).items():
                cells[("returns", name[len("ret:"):], field.decode(), "full_ret", 0)] = document(value)
            cells[("returns", name[len("ret:"):], "", "time to live", 0)] = expires
        elif kind == b"set":
            for member in server.smembers(key):
                cells[(name, member.decode(), "member", 0)] = True
        elif kind == b"string" and name.startswith("load:"):
            cells[("loads", name[len("load:"):], "load", 0)] = document(server.get(key))
            cells[("loads", name[len("load:"):], "time to live", 0)] = expires
        else:
            minion, _, fun = name.partition(":")
            cells[("last", minion, fun, "jid", 0)] = server.get(key).decode()
            cells[("last", minion, fun, "time to live", 0)] = expires
    return cells


def local_cache(opts):
    root = os.path.join(opts["cachedir"], "jobs")
    cells = {}
    for directory, _, files in os.walk(root):
        # A job's directory is two levels down; what a minion sent is one below.
        parts = os.path.relpath(directory, root).split(os.sep)
        if parts[0].startswith(".") or len(parts) < 2:
            continue
        try:
            with open(os.path.join(root, parts[0], parts[1], "jid"), encoding="utf-8") as file:
                jid = file.read()
        except OSError:
            jid = "/".join(parts[:2])
        for name in files:
            if name.startswith(".returnerd") or (name == "jid" and len(parts) == 2):
                continue
            with open(os.path.join(directory, name), "rb") as file:
                content = file.read()
            if name.endswith(".p"):
                content = msgpack.unpackb(content, raw=False, strict_map_key=False, use_list=False, ext_hook=lambda code, data: data.decode())
            else:
                content = content.decode()
            minion = "/".join(parts[2:])
            if name == "return.p" and isinstance(content, dict):
                for key, value in content.items():
                    cells[("returns", jid, minion, key, 0)] = value
            elif name == ".load.p":
                cells[("loads", jid, "load", 0)] = content
            else:
                cells[("files", jid, minion, name, 0)] = content
    return cells
