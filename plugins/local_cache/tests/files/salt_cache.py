"""Calls functions of Salt's own ``local_cache`` on a directory: a JSON list of calls on stdin, the list of answers on stdout."""

import json
import sys
import time

import salt.returners.local_cache as cache


def unjson(value):
    """Bytes and what else JSON lacks, from marks."""
    if isinstance(value, dict):
        if set(value) == {"$bytes"}:
            return bytes(value["$bytes"])
        if set(value) == {"$float"}:
            return float(value["$float"])
        if set(value) == {"$time"}:
            import datetime

            return datetime.datetime(*value["$time"])
        if set(value) == {"$pairs"}:
            return {unjson(key): unjson(inner) for key, inner in value["$pairs"]}
        return {key: unjson(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [unjson(inner) for inner in value]
    return value


def shown(value):
    return {"$bytes": list(value)} if isinstance(value, bytes) else str(value)


def main():
    request = json.load(sys.stdin)
    cache.__opts__ = {
        "cachedir": request["cachedir"],
        "hash_type": request.get("hash_type", "sha256"),
        "keep_jobs_seconds": request.get("keep_jobs_seconds", 86400),
        "job_cache_store_endtime": True,
        "jid_queue": [],
        "utc": True,
    }
    cache.__opts__.update(request.get("opts", {}))
    # What Salt logs as an error counts as one.
    import logging

    errors = []

    class Keep(logging.Handler):
        def emit(self, record):
            errors.append(record.getMessage())

    logging.getLogger("salt").addHandler(Keep(level=logging.WARNING))
    answers = []
    for name, args, kwargs in request["calls"]:
        if name == "sleep":
            time.sleep(args[0])
            continue
        answers.append(getattr(cache, name)(*unjson(args), **unjson(kwargs)))
    json.dump({"answers": answers, "errors": errors}, sys.stdout, default=shown)


main()
