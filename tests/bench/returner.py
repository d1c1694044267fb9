"""
Calls a returner as Salt does, from many clients at once, and times each call. Runs with the Python of a Salt environment.

    returner.py FILE    FILE holds a JSON object; the result is printed as a JSON object

`returner` is the name, none for a function that does nothing; `opts` are settings of a master; `clients` are processes that each
call it for `seconds`, with one connection (`how`: `warm`) or in a new process for each return as minions do (`new`). `prefix`
makes the job ids of a run its own. With `beside`, a file, calls take turns with bare writes and fdatasyncs of as many bytes.

The result has `count`, `began` and `seconds` of the whole, and the sorted microseconds of the calls (`times`, and `syncs`).
"""

import copy
import json
import logging
import os
import sys
import time

import msgpack
import salt.config
import salt.loader

logging.getLogger().handlers[:] = [logging.NullHandler()]

VALUE = "0123456789abcde " * 64

# Calls before as many bare syncs.
TURN = 20


def load(given):
    """The returner, loaded as the master does it."""
    name = given.get("returner")
    if name is None:
        return lambda ret: None
    opts = copy.deepcopy(salt.config.DEFAULT_MASTER_OPTS)
    opts.update({"__role": "master", "id": "bench_master", "grains": {}, "pillar": {}, "returner_dirs": []})
    opts.update(given["opts"])
    functions = salt.loader.returners(opts, salt.loader.minion_mods(opts, context={}))
    return functions[f"{name}.returner"]


def make(given, client, number):
    """A return of 1 KiB, of a job with a thousand minions, with a key of its own."""
    return {
        "jid": f"{given['prefix']}{number // 1000:012}",
        "id": f"minion-{client}-{number % 1000}.example.com",
        "fun": "cmd.run",
        "fun_args": ["true"],
        "return": VALUE,
        "retcode": 0,
        "success": True,
    }


def timed(function, *arguments):
    began = time.perf_counter()
    function(*arguments)
    return (time.perf_counter() - began) * 1e6


def in_new_process(function, ret):
    """The microseconds of the call, made in a child."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writer, repr(timed(function, ret)).encode())
        os._exit(0)
    os.close(writer)
    answer = os.read(reader, 64)
    os.close(reader)
    os.waitpid(child, 0)
    return float(answer)


def work(given, function, client, start):
    times, syncs = [], []
    number = 0
    if given["how"] == "warm":
        function(make(given, client, number))
        number = 1
    os.write(start["ready"], b"r")
    os.read(start["go"], 1)
    bare = os.open(given["beside"], os.O_CREAT | os.O_WRONLY | os.O_APPEND) if given.get("beside") else None
    until = time.perf_counter() + given["seconds"]
    while time.perf_counter() < until:
        ret = make(given, client, number)
        number += 1
        times.append(timed(function, ret) if given["how"] == "warm" else in_new_process(function, ret))
        # In turns: one after the other, the sync of one file would also have to write what the other one changed.
        if bare is not None and len(times) % TURN == 0:
            content = msgpack.packb(ret)
            syncs += [timed(lambda: (os.write(bare, content), os.fdatasync(bare))) for _ in range(TURN)]
    # The clock is the same in all processes.
    return times, syncs, time.perf_counter()


def main(given):
    function = load(given)
    pipes = {"ready": os.pipe(), "go": os.pipe()}
    results = []
    for client in range(given["clients"]):
        reader, writer = os.pipe()
        if os.fork() == 0:
            os.close(pipes["go"][1])
            code = 1
            try:
                found = work(given, function, client, {"ready": pipes["ready"][1], "go": pipes["go"][0]})
                with os.fdopen(writer, "w") as out:
                    json.dump(found, out)
                code = 0
            finally:
                os._exit(code)
        os.close(writer)
        results.append(reader)
    for _ in results:
        os.read(pipes["ready"][0], 1)
    began, clock = time.time(), time.perf_counter()
    os.close(pipes["go"][0])
    os.close(pipes["go"][1])
    times, syncs, end = [], [], clock
    for reader in results:
        with os.fdopen(reader) as out:
            more = json.load(out)
        times += more[0]
        syncs += more[1]
        end = max(end, more[2])
    took = end - clock
    for _ in results:
        if os.wait()[1] != 0:
            sys.exit("a client failed")
    json.dump({"count": len(times), "began": began, "seconds": took, "times": sorted(times), "syncs": sorted(syncs)}, sys.stdout)


with open(sys.argv[1], encoding="utf-8") as file:
    main(json.load(file))
