"""
Does many things that `salt` and `salt-run` do, in one process: each command would load Salt anew, for a second.

Its input is a JSON list of `{"job": FUN, "tgt": …, "arg": […], …}`, which is a job and gives each minion's answer, with
`"async": true` only its jid; and `{"run": FUN, "arg": […], "kwarg": {…}}`, which is a runner. It prints a JSON list.
"""

import json
import os
import sys

import salt.client
import salt.config
import salt.runner

path = os.path.join(sys.argv[1], "master")
opts = salt.config.master_config(path)
client = salt.client.LocalClient(c_path=path, mopts=opts)
runner = salt.runner.RunnerClient(opts)


def job(fun, tgt="*", arg=(), **more):
    fun = fun.split(",") if "," in fun else fun
    if more.pop("async", False):
        return client.run_job(tgt, fun, arg, **more)["jid"]
    return client.cmd(tgt, fun, arg, timeout=30, full_return=True, **more)


def run(fun, arg=(), kwarg=None):
    return runner.cmd(fun, list(arg), kwarg=kwarg or {}, print_event=False)


results = []
for call in json.loads(sys.argv[2]):
    results.append(job(call.pop("job"), **call) if "job" in call else run(call.pop("run"), **call))
print("\n" + json.dumps(results))
