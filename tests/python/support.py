"""
What the tests of the shim share: the shim as an administrator installs it, loaded by Salt's own loader, and a daemon
of the tests that speaks the protocol and refuses what the real one refuses.

Everything lies in a directory of its own, which `Case` removes.
"""

import json
import logging
import os
import shutil
import socket
import struct
import tempfile
import threading
import time
import unittest

import msgpack
import salt.config
import salt.loader

SHIM = os.path.join(os.path.dirname(__file__), "..", "..", "host", "src", "salt", "shim.py")
BEGINS = "# --- set by `returnerd salt install` ---"
ENDS = "# --- end of what is set ---"

JID = "20261201033051370966"
# A load as the daemon answers it.
LOAD = {
    "fun": "test.arg", "arg": [1], "tgt": "*", "tgt_type": "glob", "user": "ops", "jid": JID, "Minions": ["m1", "m2"],
}
# Returns when something has happened, never after a fixed time; this is only how long a test waits before it fails.
PATIENCE = 20

# What a test does not look for is not shown, neither by Python nor by Salt at the end of the process.
logging.getLogger().handlers[:] = [logging.NullHandler()]


def source():
    with open(SHIM, encoding="utf-8") as file:
        return file.read()


def unpack(body):
    """The value of msgpack, its extensions kept as they are."""
    keep = {"raw": False, "strict_map_key": False, "unicode_errors": "surrogatepass", "ext_hook": msgpack.ExtType}
    try:
        return msgpack.unpackb(body, **keep)
    except TypeError:
        # A list cannot be a key.
        return msgpack.unpackb(body, use_list=False, **keep)


def depth(value):
    """How deep the containers of a value are nested."""
    deepest, todo = 0, [(value, 1)]
    while todo:
        value, level = todo.pop()
        if isinstance(value, dict):
            todo.extend((inner, level + 1) for inner in value.values())
        elif isinstance(value, (list, tuple)) and not isinstance(value, msgpack.ExtType):
            todo.extend((inner, level + 1) for inner in value)
        else:
            continue
        deepest = max(deepest, level)
    return deepest


class BadRequest(Exception):
    pass


def check(request):
    """Raise BadRequest for what the real daemon would refuse."""

    def need(where, key, kinds):
        if key not in where:
            raise BadRequest(f"the frame lacks `{key}`")
        # A boolean is no number here.
        if not isinstance(where[key], kinds) or (isinstance(where[key], bool) and not {bool, object} & set(kinds)):
            raise BadRequest(f"`{key}` of the frame is a {type(where[key]).__name__}")

    text, whole, number, table, rows = (str,), (int,), (int, float), (dict,), (list, tuple)
    if not isinstance(request, dict):
        raise BadRequest("the frame is not a map")
    need(request, "v", whole)
    if request["v"] != 1:
        raise BadRequest("the frame has another protocol version")
    for key, kinds in (("op", text), ("returner", text), ("uid", (bytes,)), ("id", text), ("role", text)):
        need(request, key, kinds)
    for key, kinds in (("at", number), ("layers", table), ("salt", table)):
        need(request, key, kinds)
    if len(request["uid"]) != 16 or request["role"] not in ("master", "minion") or request["at"] < 0:
        raise BadRequest("`uid`, `role` or `at` of the frame is wrong")
    for layer, entries in request["layers"].items():
        if layer not in ("opts", "grains", "pillar", "master") or not isinstance(entries, dict):
            raise BadRequest(f"`layers` of the frame has a wrong `{layer}`")
    for key, kinds in (("ret_config", text), ("ret_kwargs", table)):
        if key in request:
            need(request, key, kinds)
    jid = ("jid", (str, int, bytes))
    further = {
        "return": [("ret", table)],
        # The daemon takes minions of any shape and reads the lists among them.
        "load": [jid, ("load", table), ("minions", (object,))],
        "minions": [jid, ("minions", (object,)), ("syndic_id", (str, type(None)))],
        "endtime": [jid, ("endtime", text)],
        "events": [("events", rows)],
        "get_load": [jid],
        "get_jid": [jid],
        "get_jids": [],
        "get_jids_filter": [("count", whole), ("filter_find_job", (bool,))],
        "get_fun": [("fun", text)],
        "get_minions": [],
        "get_endtime": [jid],
        "clean_old_jobs": [],
    }
    if request["op"] not in further:
        raise BadRequest(f"the frame asks for the unknown operation `{request['op']}`")
    for key, kinds in further[request["op"]]:
        need(request, key, kinds)
    if request["op"] == "get_jids_filter" and request["count"] < 0:
        raise BadRequest("`count` of the frame is not a whole number")
    for event in request.get("events", ()):
        need(event, "tag", text)
        if "data" not in event:
            raise BadRequest("the frame lacks `data`")
    documents = [request.get("ret"), request.get("load"), *(event["data"] for event in request.get("events", ()))]
    if any(depth(document) > 1000 for document in documents):
        raise BadRequest("the value is nested more than 1000 levels deep")


class Daemon:
    """Takes requests on a unix socket and answers with what `answers` has for the operation."""

    def __init__(self, path, backlog=64, max_frame=64 << 20):
        self.requests, self.bodies, self.answers = [], [], {}
        # Each request with the number of the connection on which it came.
        self.sources = []
        self.connections, self.max_frame = 0, max_frame
        self._open = {}
        # When set, no request is answered until it is cleared again.
        self.stopped = threading.Event()
        self._ended = threading.Event()
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(path)
        self._listener.listen(backlog)
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def close(self):
        self._ended.set()
        try:
            self._listener.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        self._thread.join(PATIENCE)
        self._listener.close()
        self.hang_up()

    def refuse(self, operation, code, error="no; hint: none"):
        self.answers[operation] = {"v": 1, "ok": False, "error": error, "code": code}

    def result(self, operation, result):
        self.answers[operation] = {"v": 1, "ok": True, "result": result}

    def last(self, operation=None):
        found = [request for request in self.requests if operation in (None, request["op"])]
        return found[-1]

    def _accept(self):
        while not self._ended.is_set():
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            self._open[self.connections] = connection
            arguments = (connection, self.connections)
            threading.Thread(target=self._serve, args=arguments, daemon=True).start()

    def _serve(self, connection, number):
        with connection:
            while self._answer(connection, number):
                pass
            self._open.pop(number, None)

    @property
    def open(self):
        """How many connections are open."""
        return len(self._open)

    def hang_up(self):
        """Close all connections, as the real one does with silent ones and at its end."""
        for connection in list(self._open.values()):
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def _answer(self, connection, number=0):
        try:
            prefix = connection.recv(4, socket.MSG_WAITALL)
            if len(prefix) < 4:
                return False
            (length,) = struct.unpack(">I", prefix)
            if length > self.max_frame:
                self._write(connection, {"v": 1, "ok": False, "error": "the frame is too long", "code": "bad_request"})
                return False
            body = bytearray()
            while len(body) < length:
                part = connection.recv(length - len(body))
                if not part:
                    return False
                body += part
            answer, good = self._decide(bytes(body), number)
            while self.stopped.is_set() and not self._ended.wait(0.01):
                pass
            if answer is None:
                return False
            self._write(connection, answer)
            return good
        except OSError:
            return False

    def _decide(self, body, number):
        try:
            request = unpack(body)
            check(request)
        except Exception as error:  # pylint: disable=broad-except
            return {"v": 1, "ok": False, "error": f"bad request: {error}", "code": "bad_request"}, False
        self.bodies.append(body)
        self.requests.append(request)
        self.sources.append((number, request))
        answer = self.answers.get(request["op"], {"v": 1, "ok": True, "result": None})
        return (answer(request) if callable(answer) else answer), True

    @staticmethod
    def _write(connection, answer):
        body = answer if isinstance(answer, bytes) else msgpack.packb(answer, use_bin_type=True)
        connection.sendall(struct.pack(">I", len(body)) + body)


class Shim:
    """The functions of one installed shim, called through Salt's loader."""

    def __init__(self, loader, name):
        self.loader, self.name = loader, name

    def __getattr__(self, function):
        return self.loader[f"{self.name}.{function}"]


class Case(unittest.TestCase):
    """A directory with a socket, an inbox and a Salt configuration."""

    name = "mysql"

    def setUp(self):
        self.root = tempfile.mkdtemp(prefix="rd-", dir="/tmp")
        self.addCleanup(shutil.rmtree, self.root, ignore_errors=True)
        self.socket = os.path.join(self.root, "s")
        self.inbox = os.path.join(self.root, "inbox")
        os.mkdir(self.inbox)

    def start(self, **settings):
        daemon = Daemon(self.socket, **settings)
        self.addCleanup(daemon.close)
        return daemon

    def header(self, **changes):
        """Set as `returnerd salt install` sets it."""
        values = {
            "VIRTUALNAME": self.name,
            "OTHER_NAMES": ("mysql_return",),
            "SOCKET": self.socket,
            "INBOX": self.inbox,
            "INTERFACES": ("returns", "jobs", "events"),
            "TIMEOUT": 5.0,
            "INBOX_MAX_BYTES": 1 << 30,
            "RETURNERD_VERSION": "1.2.3",
        }
        values.update(changes)
        return "".join(f"{key} = {value!r}\n" for key, value in values.items())

    def install(self, directory, **changes):
        os.makedirs(directory, exist_ok=True)
        before, rest = source().split(BEGINS)
        _, after = rest.split(ENDS)
        path = os.path.join(directory, f"{self.name}.py")
        with open(path, "w", encoding="utf-8") as file:
            file.write(f"{before}{BEGINS}\n{self.header(**changes)}{ENDS}{after}")
        return path

    def opts(self, role="master", config=None):
        """Salt's own reading of a configuration file."""
        given = {
            "root_dir": self.root,
            "user": "root",
            "id": "lab_master" if role == "master" else "m1",
            "returner_dirs": [os.path.join(self.root, "returners")],
            "enable_fqdns_grains": False,
            "enable_gpu_grains": False,
        }
        given.update(config or {})
        path = os.path.join(self.root, role)
        with open(path, "w", encoding="utf-8") as file:
            json.dump(given, file)
        read = salt.config.master_config if role == "master" else salt.config.minion_config
        opts = dict(read(path))
        opts.setdefault("grains", {})
        opts.setdefault("pillar", {})
        return opts

    def shim(self, role="master", config=None, grains=None, pillar=None, cli=None, **changes):
        self.install(os.path.join(self.root, "returners"), **changes)
        self.options = self.opts(role, config)
        self.options["grains"] = grains or {}
        self.options["pillar"] = pillar or {}
        self.options["__cli"] = cli or f"salt-{role}"
        return Shim(salt.loader.returners(self.options, {}), self.name)

    def frames(self):
        """The requests in the inbox, in the order in which the daemon takes them."""
        found = []
        for name in sorted(os.listdir(self.inbox)):
            self.assertRegex(name, r"^[0-9]{16}-[0-9a-f]{32}\.frame$")
            with open(os.path.join(self.inbox, name), "rb") as file:
                frame = file.read()
            self.assertEqual(struct.unpack(">I", frame[:4])[0], len(frame) - 4)
            request = unpack(frame[4:])
            check(request)
            self.assertEqual(name, f"{int(request['at'] * 1e6):016d}-{request['uid'].hex()}.frame")
            found.append(request)
        return found

    def wait_for(self, condition):
        until = time.monotonic() + PATIENCE
        while not condition():
            self.assertLess(time.monotonic(), until, "the condition did not come true")
            time.sleep(0.005)


def a_return(**more):
    """A return as a minion's returner gets it."""
    ret = {
        "success": True, "return": True, "retcode": 0, "jid": JID, "fun": "test.ping", "fun_args": [],
        "user": "root", "metadata": {"k": "v"}, "id": "m1",
    }
    ret.update(more)
    return ret


def a_load(**more):
    """A load as it is published, with everything secret that Salt is known to leave in it."""
    load = {
        "cmd": "publish", "tgt": "*", "fun": "test.arg", "arg": ["one", {"__kwarg__": True, "two": 2}],
        "tgt_type": "glob", "ret": "", "jid": JID, "user": "root", "key": "ROOTKEY-1", "token": "TOKEN-1",
        "kwargs": {
            "show_timeout": True, "delimiter": ":", "metadata": {"k": "v"}, "ret_config": "alternative",
            "key": "ROOTKEY-2", "token": "TOKEN-2", "username": "EVE-USER", "password": "EVE-PASSWORD",
            "eauth": "EVE-PAM", "ret_kwargs": {"password": "DB-PASSWORD"},
        },
    }
    load.update(more)
    return load


SECRETS = (b"ROOTKEY", b"TOKEN-", b"EVE-", b"DB-PASSWORD")
