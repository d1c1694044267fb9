"""
Hands the cases to one returner, or compares what two returners made of them. Runs with the Python of a Salt environment.

    compat.py write NAME OPTS           calls the returner NAME with every case; prints what each call raised, as JSON
    compat.py compare NAME SALT OURS RAISED LIST
                                        compares the stores and what the readers of both say of both; SALT and OURS are the
                                        files of options, RAISED what `write` printed for Salt's returner

Options are a JSON file: settings of a master, with `returner_dirs` for the returner of ours. Nothing of them is changed.
"""

import copy
import fnmatch
import importlib
import json
import logging
import math
import os
import re
import signal
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
sys.setrecursionlimit(20000)

import msgpack  # noqa: E402
import salt.config  # noqa: E402
import salt.loader  # noqa: E402

import stores  # noqa: E402
from cases import CASES  # noqa: E402
from differences import DIFFERENCES  # noqa: E402

logging.getLogger().handlers[:] = [logging.NullHandler()]


def returner(name, options_file):
    """The functions of a returner, loaded as the master does it."""
    with open(options_file, encoding="utf-8") as file:
        given = json.load(file)
    opts = copy.deepcopy(salt.config.DEFAULT_MASTER_OPTS)
    opts.update({"__role": "master", "id": "compat_master", "grains": {}, "pillar": {}, "returner_dirs": []})
    opts.update(given)
    functions = salt.loader.minion_mods(opts, context={})
    return salt.loader.returners(opts, functions), opts


# Salt's returners whose file is not called what users call them.
MODULES = {"redis": "redis_return", "sqlite3": "sqlite3_return"}


def write(name, options_file):
    functions, _ = returner(name, options_file)
    # Ours is given what Salt's has functions for.
    salts = importlib.import_module(f"salt.returners.{MODULES.get(name, name)}")
    raised = {}
    for one in CASES:
        for number, (function, arguments) in enumerate(one.calls):
            full = f"{name}.{function}"
            if full not in functions or not hasattr(salts, function):
                continue
            try:
                functions[full](*copy.deepcopy(arguments))
            except BaseException as error:  # noqa: B902 - a returner may raise anything
                raised.setdefault(one.name, []).append(f"{function}: {type(error).__name__}")
    print(json.dumps(raised))


def case_of(path, value):
    """Which case a cell belongs to; its names all begin with the case's number."""
    for part in path:
        found = re.match(r"c(\d\d)[-_/]", str(part))
        if found:
            return int(found[1])
        found = re.match(r"20261101(\d{4})", str(part))
        if found:
            return int(found[1])
    found = re.search(r"c(\d\d)[-_/]", repr(value))
    if found:
        return int(found[1])
    # Only one case has ids that it did not make itself.
    name = "a_resource" if "ssh/web1" in path else "the_placeholder_job_id"
    return next(one.number for one in CASES if one.name == name)


def plain(value):
    """A value as it is compared: what cannot be told apart in the store is made the same."""
    if isinstance(value, float) and (math.isnan(value) or math.isinf(value)):
        return {"__float__": repr(value)}
    if isinstance(value, dict):
        # The order of keys is no content for most stores; jsonb sorts them.
        return {str(key): plain(inner) for key, inner in sorted(value.items(), key=lambda pair: str(pair[0]))}
    if isinstance(value, (list, tuple, set)):
        return [plain(inner) for inner in value]
    if isinstance(value, stores.Text):
        return {"__text__": str(value)}
    if isinstance(value, (bytes, msgpack.ExtType)):
        return {"__raw__": repr(value)}
    return value


def by_case(cells):
    """The cells of each case. Job ids that Salt made up are replaced by the minion's order in the case."""
    cases = {}
    for path, value in cells.items():
        number = case_of(path, value)
        known = CASES[number - 1].jids
        path = tuple("(new)" if re.fullmatch(r"20\d{18}", str(part)) and part not in known else part for part in path)
        value = plain(value)
        if isinstance(value, dict) and re.fullmatch(r"20\d{18}", str(value.get("jid"))) and value["jid"] not in known:
            value = dict(value, jid="(new)")
        cases.setdefault(number, {})[path] = value
    return cases


ABSENT = "(absent)"
# How long a reading function may take, in seconds, before it is taken to be in an endless loop.
ENDLESS = 5


class Endless(BaseException):
    """A function does not end."""


def _interrupt(signum, frame):
    raise Endless


signal.signal(signal.SIGALRM, _interrupt)


class Raised(str):
    """What a reading function raised."""


def readings(functions, name, cases=CASES):
    """What the reading functions say of each case."""

    def ask(function, *arguments):
        if f"{name}.{function}" not in functions:
            return ABSENT
        try:
            # Salt's `local_cache` tries an unreadable file for ever.
            signal.alarm(ENDLESS)
            return plain(functions[f"{name}.{function}"](*arguments))
        except BaseException as error:  # noqa: B902
            return Raised(type(error).__name__)
        finally:
            signal.alarm(0)

    everything = {function: ask(function) for function in ("get_jids", "get_minions")}
    found = {}
    for one in cases:
        answers = found[one.number] = {}
        for jid in one.jids:
            answers[("get_load", jid)] = ask("get_load", jid)
            answers[("get_jid", jid)] = ask("get_jid", jid)
            listed = everything["get_jids"]
            answers[("get_jids", jid)] = listed.get(jid, ABSENT) if isinstance(listed, dict) else listed
        for fun in one.funs:
            answers[("get_fun", fun)] = ask("get_fun", fun)
        for minion in one.ids:
            listed = everything["get_minions"]
            answers[("get_minions", minion)] = minion in listed if isinstance(listed, list) else listed
    return found


def differing(prefix, salts, ours):
    for key in sorted(set(salts) | set(ours), key=str):
        salt_value, our_value = salts.get(key, ABSENT), ours.get(key, ABSENT)
        if salt_value != our_value or isinstance(salt_value, bool) != isinstance(our_value, bool):
            yield prefix + "/" + _part(key), key, salt_value, our_value


def _part(key):
    """The name of a cell or an answer without what belongs to the one case."""
    return str(key[0]) + "/" + str(key[-2]) if len(key) > 2 else str(key[0])


def listed(name, case, part, salt_value, our_value, raised):
    """The row of the table that says why a difference is right; none if there is none."""
    for row in DIFFERENCES:
        if (
            any(fnmatch.fnmatch(name, pattern) for pattern in row.returners.split())
            and any(fnmatch.fnmatch(case, pattern) for pattern in row.cases.split())
            and any(fnmatch.fnmatch(part, pattern) for pattern in row.parts.split())
            and (row.when is None or row.when(salt_value, our_value, raised))
        ):
            return row
    return None


def compare(name, salt_file, our_file, raised_file, verbose):
    with open(raised_file, encoding="utf-8") as file:
        raised = json.load(file)
    salts, salt_opts = returner(name, salt_file)
    # Salt's functions on our store, and ours on Salt's.
    with open(our_file, encoding="utf-8") as file:
        our_opts = json.load(file)
    swapped = {"salt_on_ours": dict(our_opts, returner_dirs=[]), "ours_on_salts": None}
    with open(salt_file, encoding="utf-8") as file:
        salts_store = json.load(file)
    swapped["ours_on_salts"] = dict(our_opts, **salts_store, returner_dirs=our_opts["returner_dirs"])
    files = {}
    for key, opts in swapped.items():
        files[key] = f"{our_file}.{key}"
        with open(files[key], "w", encoding="utf-8") as file:
            json.dump(opts, file)

    read = getattr(stores, name)
    salt_cells, our_cells = by_case(read(salt_opts)), by_case(read(dict(salt_opts, **our_opts)))
    asked = {"salt of salt's": readings(salts, name)}
    for prefix, key in (("salt of ours", "salt_on_ours"), ("ours of salt's", "ours_on_salts")):
        asked[prefix] = readings(returner(name, files[key])[0], name)
    asked["ours of ours"] = readings(returner(name, our_file)[0], name)

    counts = {"same": 0, "better": 0, "worse": 0}
    for one in CASES:
        if not any(f"{name}.{function}" in salts for function, _ in one.calls):
            continue
        found = list(differing("store", salt_cells.get(one.number, {}), our_cells.get(one.number, {})))
        for prefix in ("salt of ours", "ours of salt's", "ours of ours"):
            found += differing(prefix, asked["salt of salt's"][one.number], asked[prefix][one.number])
        verdict = "same"
        for part, key, salt_value, our_value in found:
            row = listed(name, one.name, part, salt_value, our_value, raised.get(one.name, []))
            if row is None:
                verdict = "worse"
                print(f"{name} {one.name}: {part} {key}\n    Salt: {_short(salt_value)}\n    ours: {_short(our_value)}"
                      f"\n    Salt's returner raised: {raised.get(one.name)}", file=sys.stderr)
            elif verdict == "same" and not row.everywhere:
                verdict = "better"
            if verbose and row:
                print(f"{name} {one.name}: {part}: {row.reason}", file=sys.stderr)
        counts[verdict] += 1
    print(f"compat {name}: {counts['same']} same, {counts['better']} better (listed), {counts['worse']} worse")
    return 1 if counts["worse"] else 0


def _short(value):
    text = repr(value)
    return text if len(text) <= 300 else f"{text[:300]}… ({len(text)} characters)"


if __name__ == "__main__":
    if sys.argv[1] == "write":
        write(*sys.argv[2:4])
    else:
        sys.exit(compare(*sys.argv[2:6], verbose=os.environ.get("COMPAT_VERBOSE")))
