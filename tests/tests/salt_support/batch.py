"""
Does many things that `salt` and `salt-run` do, in one process: each command would load Salt anew, for a second.

Its input is a JSON list of `{"job": FUN, "tgt": …, "arg": […], …}`, which is a job and gives each minion's answer, with
`"stored": N` its jid as soon as the job cache holds N returns of it; and `{"run": FUN, "arg": […], "kwarg": {…}}`, which is a runner. It prints a JSON list.
"""

import json
import os
import sys
import time

import salt.client
import salt.config
import salt.minion
import salt.runner

path = os.path.join(sys.argv[1], "master")
opts = salt.config.master_config(path)
client = salt.client.LocalClient(c_path=path, mopts=opts)
runner = salt.runner.RunnerClient(opts)

# Each runner makes one of these, which loads all modules; here one serves all.
make, made = salt.minion.MasterMinion, []


def master_minion(*args, **kwargs):
    if not made:
        made.append(make(*args, **kwargs))
    return made[0]


salt.minion.MasterMinion = master_minion


def job(fun, tgt="*", arg=(), **more):
    fun = fun.split(",") if "," in fun else fun
    count = more.pop("stored", 0)
    if count:
        jid, until = client.run_job(tgt, fun, arg, **more)["jid"], time.monotonic() + 60
        while len(client.get_cache_returns(jid)) < count and time.monotonic() < until:
            time.sleep(0.05)
        return jid
    return client.cmd(tgt, fun, arg, timeout=30, full_return=True, **more)


def run(fun, arg=(), kwarg=None):
    return runner.cmd(fun, list(arg), kwarg=kwarg or {}, print_event=False)


results = []
for call in json.loads(sys.argv[2]):
    results.append(job(call.pop("job"), **call) if "job" in call else run(call.pop("run"), **call))
print("\n" + json.dumps(results))
