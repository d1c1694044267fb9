"""
Hands what Salt gives to this returner to the daemon ``returnerd``, which keeps it safely and delivers it.

``returnerd salt install`` writes this file once for each returner, under the returner's name. Do not edit it: the
next installation writes it anew. The options of the returner stand where Salt's own returner had them. Where the
daemon is found can be changed in the configuration of the minion or master:

.. code-block:: yaml

    returnerd:
      socket: /run/returnerd/returnerd.sock
      inbox: /var/lib/returnerd/inbox
      timeout: 5

A record that the daemon cannot take, because it is stopped or full, is written into the inbox directory, from which
the daemon takes it later. Only if that fails too does Salt see an error.
"""

# Invariants: what Salt gives is never changed; a connection belongs to one request at a time and to one process, so
# that threads and forks do not meet; nothing is raised where Salt does not guard the call; neither an option nor a
# payload is ever logged. Functions for Salt have no leading underscore, everything else has one.

import collections.abc
import datetime
import json
import logging
import os
import socket
import struct
import sys
import time
from itertools import chain

import msgpack

# --- set by `returnerd salt install` ---
VIRTUALNAME = "shim"
OTHER_NAMES = ("shim_return",)
SOCKET = "/run/returnerd/returnerd.sock"
INBOX = "/var/lib/returnerd/inbox"
INTERFACES = ("returns", "jobs", "events")
TIMEOUT = 5.0
INBOX_MAX_BYTES = 1 << 30
RETURNERD_VERSION = "0.0.0"
# --- end of what is set ---

__virtualname__ = VIRTUALNAME

log = logging.getLogger(__name__)

_Mapping = collections.abc.Mapping
# What Salt leaves in a load and nobody else may see.
_SECRETS = frozenset(("key", "token", "eauth", "username", "password", "ret_kwargs"))
# Answers after which the same record may be taken later.
_LATER = ("full", "unavailable", "unreachable")
# Levels of a frame: the daemon refuses documents with more than 1,000.
_MAX_DEPTH = 1000
# The packer ends, by its release, at 511 or 1,024 levels. In so many lists it ends before `_MAX_DEPTH`.
_PADDING = 32
_PLAIN_TYPES = frozenset((str, bytes, bool, int, float, type(None), dict, list, tuple))
# The connection that the last request left for the next one, with its process and path. Empty while it is in use.
_KEPT = collections.deque(maxlen=1)


def __virtual__():
    return VIRTUALNAME


# What is handed over: on the daemon's disk or in the inbox when these functions return.


def returner(ret):
    """Hand over the return of a job."""
    given = ret if isinstance(ret, _Mapping) else {}
    # `ret_kwargs` overrides options, perhaps a password, and is no part of the record.
    fields = {"ret": _without(ret, ("ret_kwargs",))}
    _hand_over("return", fields, _is_guarded(given), given.get("ret_config"), given.get("ret_kwargs"))


def save_load(jid, load, minions=None):
    """Hand over the load of a job. Salt also calls this with each return of the job in the load's place."""
    fields = {"jid": _jid(jid), "load": _scrubbed(load), "minions": minions}
    # The syndic's code and salt-ssh do not guard the call. They give no `minions`, publishing does.
    _hand_over("load", fields, guarded=minions is not None)


def save_minions(jid, minions, syndic_id=None):
    """Hand over the ids of minions that a syndic expects to answer a job."""
    syndic_id = None if syndic_id is None else _text(syndic_id)
    fields = {"jid": _jid(jid), "minions": minions, "syndic_id": syndic_id}
    _hand_over("minions", fields, guarded=False)


def update_endtime(jid, endtime):
    """Hand over the time when a job ended."""
    _hand_over("endtime", {"jid": _jid(jid), "endtime": _text(endtime)}, guarded=False)


def event_return(events):
    """Hand over events of the master's bus."""
    # With its default queue Salt gives an empty list for every event that its filters drop.
    if events:
        _hand_over("events", {"events": [_event(event) for event in list(events)]}, guarded=True)


# Questions. An error says that the daemon cannot answer. An empty answer would not do: Salt takes an empty load for
# "no such job" and then shows no results.


def get_load(jid):
    """Return the load of a job, with the expected minions under ``Minions``; empty if there is no such job."""
    text = _ask("get_load", {"jid": _jid(jid)})
    load = {} if text is None else _parsed(text)
    if load is None:
        raise _Failed(f"returnerd: the load of job {jid} cannot be read")
    return load


def get_jid(jid):
    """Return what each minion returned for a job."""
    return _returns(_ask("get_jid", {"jid": _jid(jid)}))


def get_fun(fun):
    """Return each minion's latest return of a function."""
    return _returns(_ask("get_fun", {"fun": _text(fun)}))


def get_jids():
    """Return all jobs."""
    return {jid: _job(jid, text) for jid, text in (_ask("get_jids") or {}).items()}


def get_jids_filter(count, filter_find_job=True):
    """Return the newest ``count`` jobs, oldest first."""
    fields = {"count": max(0, int(count)), "filter_find_job": bool(filter_find_job)}
    return [dict(_job(jid, text), JID=jid) for jid, text in _ask("get_jids_filter", fields) or ()]


def get_minions():
    """Return the ids of all minions that have returned something."""
    return list(_ask("get_minions") or ())


def get_endtime(jid):
    """Return the time when a job ended, or False."""
    return _ask("get_endtime", {"jid": _jid(jid)}) or False


def clean_old_jobs():
    """Let the daemon remove, in the background, the jobs older than ``keep_jobs_seconds``."""
    try:
        _ask("clean_old_jobs")
    except Exception as error:  # pylint: disable=broad-except
        # Raised, it would end Salt's maintenance process.
        log.warning("%s: old jobs are not removed: %s", VIRTUALNAME, error)


def prep_jid(nocache=None, passed_jid=""):
    """Return the job id that is given, or a new one. It is made here: a job starts whatever the daemon does."""
    if passed_jid:
        return passed_jid
    # Both arguments are there only when a job is published; Salt then shows an `error` to the user. Otherwise the job
    # has run already, and a returner without job storage may well take what it returned.
    if "jobs" not in INTERFACES and nocache is not None and passed_jid is None:
        return {
            "error": f"the returner `{VIRTUALNAME}` stores no jobs, so it cannot be the `master_job_cache`; hint: take"
            " that line out of the master config and name the returner with `--return` or as `return` in the minion"
            " config; if its plugin has learnt to store jobs, run `returnerd salt install` and restart Salt"
        }
    jid = _new_jid()
    # The next id of this process must differ, so wait for the next microsecond.
    until = time.monotonic() + 0.01
    while _new_jid() == jid and time.monotonic() < until:
        pass
    return jid


# How what Salt gives becomes a request.


def _is_guarded(ret):
    """
    Whether an error is reported that the call raises. A schedule turns it into a failure of the job and stops further
    returners, `salt-call` drops it in silence, `salt-ssh` and the state `module.run` (just these keys) end with it.
    """
    bare = set(ret) <= {"id", "jid", "fun", "return", "ret"}
    return not bare and "schedule" not in ret and _mapping("__opts__").get("__cli") != "salt-call"


def _jid(jid):
    return jid if isinstance(jid, (str, bytes, int)) else _text(jid)


def _event(event):
    event = event if isinstance(event, _Mapping) else {"data": event}
    tag = _text(event.get("tag", ""))
    # The events of a job can hold its load and so the log-in; others have such keys for reasons of their own.
    of_job = any(part in tag for part in ("salt/job/", "salt/run/", "salt/wheel/"))
    return {"tag": tag, "data": _scrubbed(event.get("data"), _SECRETS if of_job else ("ret_kwargs",))}


def _scrubbed(load, secrets=_SECRETS, depth=0):
    """A copy without secrets, which stand in the load, in its ``kwargs``, and in a load within it."""
    copy = _without(load, secrets)
    for key in ("kwargs", "load"):
        if isinstance(copy, dict) and isinstance(copy.get(key), _Mapping):
            copy[key] = _scrubbed(copy[key], secrets, depth + 1) if depth < 8 else {}
    return copy


def _without(record, names):
    if not isinstance(record, _Mapping):
        return record
    hidden = {*names, *(name.encode() for name in names)}
    return {key: value for key, value in list(record.items()) if key not in hidden}


def _new_jid():
    try:
        from salt.utils.jid import gen_jid

        try:
            return gen_jid(_mapping("__opts__"))
        except TypeError:
            return gen_jid()
    except Exception:  # pylint: disable=broad-except
        return datetime.datetime.now(datetime.timezone.utc).strftime("%Y%m%d%H%M%S%f")


def _frame(operation, fields, ret_config=None, ret_kwargs=None):
    """The bytes of a request, and the name of its file in the inbox."""
    opts, uid, at = _mapping("__opts__"), os.urandom(16), time.time()
    request = {
        "v": 1,
        "op": operation,
        "returner": VIRTUALNAME,
        "uid": uid,
        "id": _text(opts.get("id") or ""),
        "role": "minion" if opts.get("__role") == "minion" else "master",
        "at": at,
        "layers": _layers(ret_kwargs),
        "salt": _own_settings(opts, operation),
    }
    if ret_config and isinstance(ret_config, str):
        request["ret_config"] = ret_config
    if isinstance(ret_kwargs, _Mapping):
        request["ret_kwargs"] = ret_kwargs
    elif ret_kwargs:
        log.warning("%s: the job's `ret_kwargs` are no map and are passed over", VIRTUALNAME)
    body = _encode({**request, **fields})
    if len(body) >= 1 << 32:
        raise _Failed(f"returnerd: a record of {len(body)} bytes does not fit into a frame")
    return struct.pack(">I", len(body)) + body, f"{int(at * 1e6):016d}-{uid.hex()}.frame"


def _own_settings(opts, operation):
    names = ("keep_jobs_seconds", "keep_jobs", "archive_jobs", "cachedir", "hash_type")
    found = {name: opts.get(name) for name in names if opts.get(name) is not None}
    # Each release has its own rule which of the first two counts.
    if operation == "clean_old_jobs" or found.get("keep_jobs", 24) != 24:
        try:
            from salt.utils.job import get_keep_jobs_seconds

            found["keep_jobs_seconds"] = get_keep_jobs_seconds(opts)
        except Exception:  # pylint: disable=broad-except
            log.debug("this release of Salt does not say for how long it keeps jobs")
    return found


def _layers(ret_kwargs):
    """The entries of configuration, grains and pillar that may hold options of this returner."""
    names = {VIRTUALNAME, *OTHER_NAMES}
    sources = {name: _mapping(f"__{name}__") for name in ("opts", "grains", "pillar")}
    if isinstance(sources["pillar"].get("master"), _Mapping):
        sources["master"] = sources["pillar"].get("master")
    layers, profiles = {}, _profiles("", ret_kwargs)
    for layer, source in sources.items():
        # Salt's configuration has hundreds of keys: few of them are worth a closer look.
        every = [key for key in list(source) if isinstance(key, str)]
        near = [key for name in names for key in every if name in key]
        keys = [key for key in near if not names.isdisjoint(key.split("."))]
        layers[layer] = {key: source.get(key) for key in keys}
        for key, value in layers[layer].items():
            profiles |= _profiles(key, value)
    for layer, source in sources.items():
        found = {name: source.get(name) for name in profiles}
        layers[layer].update((name, value) for name, value in found.items() if isinstance(value, _Mapping))
    return layers


def _profiles(key, value):
    """The names that an option ``profile`` (also ``slack_profile``) gives, by itself or within a map."""
    entries = list(value.items()) if isinstance(value, _Mapping) else [(key, value)]
    return {name for key, name in entries if isinstance(name, str) and str(key).endswith("profile")}


def _mapping(name):
    """One of the maps that Salt's loader gives a module; empty where it gives none."""
    found = globals().get(name)
    try:
        return found if found is not None and len(found) else {}
    except Exception:  # pylint: disable=broad-except
        return {}


# What becomes of a request.


class _Failed(Exception):
    """Why something was not done, with the daemon's code for that."""

    def __init__(self, text, code="internal"):
        super().__init__(text)
        self.code = code


def _ask(operation, fields=None):
    return _exchange(_frame(operation, fields or {})[0])


def _hand_over(operation, fields, guarded, ret_config=None, ret_kwargs=None):
    """Give a record to the daemon or else to the inbox; raise an error only where the call is guarded."""
    record = fields.get("ret", fields)
    jid = record.get("jid") if isinstance(record, _Mapping) else None
    try:
        frame, name = _frame(operation, fields, ret_config, ret_kwargs)
        try:
            _exchange(frame)
        except _Failed as failed:
            if failed.code not in _LATER:
                raise
            try:
                _to_inbox(frame, name)
            except OSError as error:
                raise _Failed(f"{failed}; and it cannot be kept in the inbox: {error}") from None
            log.warning("%s: `%s` of job %s is kept in the inbox: %s", VIRTUALNAME, operation, jid, failed)
    except Exception as error:  # pylint: disable=broad-except
        if guarded:
            raise
        log.error("%s: `%s` of job %s is lost: %s", VIRTUALNAME, operation, jid, error)


def _settings():
    """Socket, inbox and time limit, from the map ``returnerd`` in Salt's configuration or else the header."""
    given = _mapping("__opts__").get("returnerd")
    given = given if isinstance(given, _Mapping) else {}
    try:
        timeout = float(given.get("timeout") or TIMEOUT)
    except (TypeError, ValueError):
        timeout = TIMEOUT
    timeout = timeout if 0 < timeout < 86400 else TIMEOUT
    return str(given.get("socket") or SOCKET), str(given.get("inbox") or INBOX), timeout


def _exchange(frame):
    """Send a request and return the result in its answer, all within the time limit."""
    path, _, timeout = _settings()
    deadline = time.monotonic() + timeout
    try:
        answer, connection = None, _kept(path)
        if connection is not None:
            try:
                answer = _request(connection, frame, deadline)
            except ConnectionError:
                # The daemon closes what is silent for long, and all when it ends. A new one may have begun.
                log.debug("%s: the connection that was kept is closed", VIRTUALNAME)
        if answer is None:
            connection = _connect(path, deadline)
            answer = _request(connection, frame, deadline)
        if answer["ok"]:
            _KEPT.append((os.getpid(), path, connection))
            return answer.get("result")
        text, code = f"returnerd: {answer['error']}", answer["code"]
    except socket.timeout:
        text, code = f"returnerd has not answered at {path} within {timeout:g} s", "unreachable"
    except OSError as error:
        text = f"returnerd cannot be reached at {path}: {error}; hint: does it run, and may this user connect?"
        code = "unreachable"
    except Exception as error:  # pylint: disable=broad-except
        text, code = f"the answer of returnerd at {path} cannot be read: {error!r}", "unreachable"
    raise _Failed(text, code)


def _kept(path):
    """The connection that is kept, taken out, or None."""
    try:
        # One step, so that it is given to one thread only.
        process, its_path, connection = _KEPT.pop()
    except IndexError:
        return None
    if (process, its_path) == (os.getpid(), path):
        return connection
    # That of the process we were forked from: it goes on using it.
    connection.close()
    return None


def _request(connection, frame, deadline):
    """The answer to one request. The connection is closed unless the request was done: more may come, or nothing."""
    try:
        connection.settimeout(_left(deadline))
        try:
            connection.sendall(frame)
        except (BrokenPipeError, ConnectionResetError):
            # The daemon may refuse a frame before its end; it has then said why.
            pass
        body = _receive(connection, deadline)
        answer = msgpack.unpackb(body, raw=False, strict_map_key=False, unicode_errors="surrogatepass")
        if not answer["ok"]:
            connection.close()
        return answer
    except BaseException:
        connection.close()
        raise


def _left(deadline):
    left = deadline - time.monotonic()
    if left <= 0:
        raise socket.timeout
    return left


def _connect(path, deadline):
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        while True:
            connection.settimeout(_left(deadline))
            try:
                connection.connect(path)
                return connection
            except BlockingIOError:
                # The daemon's queue of connections is full. Python does not wait for that on a unix socket.
                time.sleep(min(0.01, _left(deadline)))
    except BaseException:
        connection.close()
        raise


def _receive(connection, deadline):
    """The body of one frame."""
    received, end = bytearray(), None
    while end is None or len(received) < end:
        connection.settimeout(_left(deadline))
        part = connection.recv(1 << 16 if end is None else min(end - len(received), 1 << 20))
        if not part:
            raise ConnectionError("the connection was closed before the answer")
        received += part
        if end is None and len(received) >= 4:
            end = 4 + struct.unpack_from(">I", received)[0]
    return bytes(received[4:end])


def _to_inbox(frame, name):
    """Write a request into the inbox, whole and on disk, or not at all."""
    directory, size = _settings()[1], len(frame)
    with os.scandir(directory) as entries:
        for entry in entries:
            try:
                size += entry.stat(follow_symlinks=False).st_size
            except FileNotFoundError:
                pass  # The daemon has just taken it.
    if size > INBOX_MAX_BYTES:
        raise OSError(f"{directory} would hold more than {INBOX_MAX_BYTES} bytes; hint: start returnerd")
    temporary = os.path.join(directory, f".tmp-{name}")
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(frame)
            file.flush()
            os.fsync(file.fileno())
        os.rename(temporary, os.path.join(directory, name))
    except BaseException:
        os.unlink(temporary)
        raise
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


# What becomes of an answer.


def _parsed(text):
    """The map that JSON text stands for, or None."""
    try:
        value = json.loads(text)
    except (TypeError, ValueError, RecursionError) as error:
        log.error("%s: an answer of returnerd cannot be read: %s", VIRTUALNAME, type(error).__name__)
        return None
    return value if isinstance(value, dict) else None


def _returns(texts):
    parsed = {minion: _parsed(text) for minion, text in (texts or {}).items()}
    # One return that cannot be read must not hide the others.
    unreadable = {"return": "this return cannot be read"}
    return {minion: dict(unreadable) if ret is None else ret for minion, ret in parsed.items()}


def _job(jid, text):
    """A job as ``jobs.list_jobs`` shows it."""
    from salt.utils.jid import format_jid_instance

    load = _parsed(text) or {}
    try:
        job = format_jid_instance(jid, load)
    except Exception:  # pylint: disable=broad-except
        job = format_jid_instance(jid, {"fun": load.get("fun", "unknown-function")})
    if isinstance(load.get("Minions"), list):
        job["Minions"] = load["Minions"]
    if load.get("EndTime"):
        job["EndTime"] = load["EndTime"]
    return job


# msgpack of any value.


def _encode(value):
    """The msgpack of a value; what has none becomes text."""
    padded = value
    for _ in range(_PADDING):
        padded = [padded]
    try:
        # Of each list around the value one byte was written.
        return msgpack.packb(padded, default=_plain, use_bin_type=True, unicode_errors="surrogatepass")[_PADDING:]
    except Exception:  # pylint: disable=broad-except
        # Too deep for the packer, holding itself, changed by another thread, or odd in some other way.
        return _encode_slowly(value)


def _encode_slowly(value):
    pack, frame = msgpack.Packer(use_bin_type=True, unicode_errors="surrogatepass"), []
    # The containers that are open: what is still to be written of each, and the container itself.
    path, inside = [(iter((value,)), None)], set()
    while path:
        parts, container = path[-1]
        try:
            item = next(parts)
        except StopIteration:
            path.pop()
            inside.discard(id(container))
            continue
        plain = item if type(item) in _PLAIN_TYPES else _plain(item)
        if type(plain) in (dict, list, tuple):
            if id(item) not in inside and len(path) <= _MAX_DEPTH:
                # A copy, since another thread may change it meanwhile.
                parts = list(plain.items() if type(plain) is dict else plain)
                frame.append((pack.pack_map_header if type(plain) is dict else pack.pack_array_header)(len(parts)))
                path.append((chain.from_iterable(parts) if type(plain) is dict else iter(parts), item))
                inside.add(id(item))
                continue
            plain = f"<{'recursion on' if id(item) in inside else 'too deep:'} {type(item).__name__}>"
        try:
            frame.append(pack.pack(plain))
        except Exception:  # pylint: disable=broad-except
            frame.append(pack.pack(_text(plain)))
    return b"".join(frame)


def _plain(value):
    """What the packer takes in place of a value that it does not know."""
    try:
        if isinstance(value, msgpack.ExtType):
            return value
        if isinstance(value, str):
            return str.__str__(value)
        if isinstance(value, (bytes, bytearray, memoryview)):
            return bytes(value)
        if isinstance(value, float):
            return float(value)
        if isinstance(value, int):
            return int(value) if -(1 << 63) <= value < 1 << 64 else _text(int(value))
        if isinstance(value, datetime.datetime) and value.utcoffset() is not None:
            return value.isoformat()  # Salt's own extension has no room for the zone.
        if isinstance(value, datetime.date):
            return msgpack.ExtType(78, _date(value))
        constant = getattr(sys.modules.get("salt.defaults"), "_Constant", None)
        if constant is not None and isinstance(value, constant):
            return msgpack.ExtType(79, _encode((value.name, value.value)))
        if isinstance(value, _Mapping):
            return dict(value.items())
        lists = (collections.abc.Set, collections.abc.Sequence, collections.abc.ValuesView, collections.deque)
        if isinstance(value, lists) and not isinstance(value, range):
            return list(value)
    except Exception:  # pylint: disable=broad-except
        pass  # A value that cannot even be asked what it is.
    return _text(value)


def _date(value):
    """A date without a zone as Salt writes it."""
    midnight = datetime.datetime(value.year, value.month, value.day)
    moment = value if isinstance(value, datetime.datetime) else midnight
    return moment.isoformat(timespec="microseconds").replace("-", "").encode()


def _text(value):
    try:
        return str.__str__(str(value))
    except Exception:  # pylint: disable=broad-except
        return f"<{type(value).__name__}>"
