"""Salt's own code that calls returners, with this one in its place."""

import json
import logging
import types
import warnings

import salt.client
import salt.loader
import salt.master
import salt.utils.jid
import salt.utils.job

from support import JID, LOAD, Case, Shim, a_return


class WithSaltsOwnCode(Case):
    """The code of the master."""

    def setUp(self):
        super().setUp()
        self.events = []
        self.event = types.SimpleNamespace(
            fire_event=lambda data, tag: self.events.append((tag, data)), fire_ret_load=lambda load: None
        )

    def publish(self, shim):
        master = types.SimpleNamespace(
            opts={"master_job_cache": "mysql"}, mminion=types.SimpleNamespace(returners=shim.loader)
        )
        return salt.master.ClearFuncs._prep_jid(master, {"jid": ""}, {})

    def store(self, shim, load, **more):
        opts = dict(self.options, master_job_cache="mysql", **more)
        salt.utils.job.store_job(opts, load, self.event, types.SimpleNamespace(returners=shim.loader))

    def test_a_job_is_published_without_a_daemon(self):
        self.assertTrue(salt.utils.jid.is_jid(self.publish(self.shim())))

    def test_a_returner_without_jobs_refuses_to_be_the_job_cache_in_clear_words(self):
        answer = self.publish(self.shim(INTERFACES=("returns",)))
        self.assertIn("`mysql` stores no jobs", answer["error"])
        self.assertIn("hint:", answer["error"])

    def test_a_return_to_a_returner_without_jobs_still_gets_an_id(self):
        daemon, shim = self.start(), self.shim(INTERFACES=("returns",))
        self.store(shim, a_return(jid="req", cmd="_return"))
        self.assertTrue(salt.utils.jid.is_jid(daemon.last("return")["ret"]["jid"]))
        self.assertEqual(self.events[0][0], f"salt/job/{daemon.last('return')['ret']['jid']}/ret/m1")

    def test_a_return_is_stored_with_its_load_and_end_time(self):
        daemon, shim = self.start(), self.shim()
        self.store(shim, a_return(cmd="_return"), job_cache_store_endtime=True)
        self.assertEqual([request["op"] for request in daemon.requests], ["load", "return", "endtime"])
        self.assertEqual({request.get("jid", JID) for request in daemon.requests}, {JID})

    def test_a_return_of_salt_call_gets_one_id_for_all(self):
        daemon, shim = self.start(), self.shim()
        self.store(shim, a_return(jid="req", cmd="_return"))
        self.assertEqual([request["op"] for request in daemon.requests], ["load", "load", "return"])
        jids = {request.get("jid") or request["ret"]["jid"] for request in daemon.requests}
        self.assertEqual(len(jids), 1)
        self.assertTrue(salt.utils.jid.is_jid(jids.pop()))

    def test_a_refusing_daemon_does_not_stop_the_event_or_the_master(self):
        daemon, shim = self.start(), self.shim()
        for operation in ("load", "return", "endtime"):
            daemon.refuse(operation, "options")
        with self.assertLogs(level=logging.ERROR):
            self.store(shim, a_return(cmd="_return"), job_cache_store_endtime=True)
        self.assertEqual(self.events[0][0], f"salt/job/{JID}/ret/m1")

    def test_minions_of_a_syndic_are_stored_by_salts_code(self):
        daemon, shim = self.start(), self.shim()
        opts = dict(self.options, master_job_cache="mysql")
        salt.utils.job.store_minions(opts, JID, ["m1"], types.SimpleNamespace(returners=shim.loader), syndic_id="s")
        self.assertEqual(daemon.last()["syndic_id"], "s")

    def test_cached_returns_are_read_by_the_client(self):
        daemon, shim = self.start(), self.shim()
        daemon.result("get_jid", {"m1": json.dumps(a_return(out="nested"))})
        client = types.SimpleNamespace(opts={"master_job_cache": "mysql"}, returners=shim.loader)
        found = salt.client.LocalClient.get_cache_returns(client, JID)
        self.assertEqual(found, {"m1": {"ret": True, "out": "nested"}})

    def test_old_jobs_are_cleaned_by_the_rule_of_the_release(self):
        daemon = self.start()
        keep = [{"keep_jobs_seconds": 60}, {"keep_jobs": 1}, {"keep_jobs_seconds": 0}]
        for config in ({}, *keep, {"archive_jobs": True}):
            shim = self.shim(config=config)
            with warnings.catch_warnings():
                # 3006 warns of `keep_jobs`.
                warnings.simplefilter("ignore")
                self.assertIsNone(shim.clean_old_jobs())
                expected = salt.utils.job.get_keep_jobs_seconds(self.options)
            asked = daemon.last("clean_old_jobs")["salt"]
            self.assertEqual(asked["keep_jobs_seconds"], expected)
            self.assertEqual(asked.get("archive_jobs"), self.options.get("archive_jobs"))

    def test_every_request_tells_the_same_keep_time(self):
        daemon = self.start()
        for config in ({"keep_jobs_seconds": 60}, {"keep_jobs": 48}):
            shim = self.shim(config=config)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                expected = salt.utils.job.get_keep_jobs_seconds(self.options)
                shim.clean_old_jobs()
                shim.save_load(JID, {"fun": "test.ping"})
            for operation in ("clean_old_jobs", "load"):
                self.assertEqual(daemon.last(operation)["salt"]["keep_jobs_seconds"], expected)

    def test_the_loader_of_the_maintenance_process_works(self):
        # It gives neither `__salt__` nor grains.
        daemon = self.start()
        self.shim()
        self.options.pop("grains")
        self.options.pop("pillar")
        shim = Shim(salt.loader.returners(self.options, {}), "mysql")
        shim.clean_old_jobs()
        self.assertEqual(daemon.last()["layers"], {"opts": {}, "grains": {}, "pillar": {}})


class Runners(Case):
    """`salt-run jobs.*`, which makes a master's minion of its own for each call."""

    def setUp(self):
        super().setUp()
        self.daemon = self.start()
        self.shim(config={"master_job_cache": "mysql", "job_cache_store_endtime": True})
        self.options.setdefault("ext_job_cache", "")
        self.runners = salt.loader.runner(self.options)
        self.daemon.result("get_load", json.dumps(LOAD))
        self.daemon.result("get_jid", {"m1": json.dumps(a_return(out="nested"))})
        self.daemon.result("get_jids", {JID: json.dumps(LOAD)})
        self.daemon.result("get_jids_filter", [[JID, json.dumps(LOAD)]])
        self.daemon.result("get_endtime", "2026, Dec 01 03:31:39.897742")

    def test_a_job_is_looked_up(self):
        found = self.runners["jobs.lookup_jid"](JID)
        self.assertEqual(found.get("data", found), {"m1": True})

    def test_a_job_is_shown_with_its_end_and_its_returns(self):
        for function in ("jobs.list_job", "jobs.print_job"):
            found = self.runners[function](JID)
            found = found.get(JID, found)
            self.assertEqual((found["Function"], found["Target"], found["User"]), ("test.arg", "*", "ops"))
            self.assertEqual(found["EndTime"], "2026, Dec 01 03:31:39.897742")
            self.assertEqual(found["Result"]["m1"]["return"], True)

    def test_jobs_are_listed(self):
        self.assertEqual(self.runners["jobs.list_jobs"](search_function="test.*")[JID]["Target"], "*")
        self.assertEqual(self.runners["jobs.list_jobs_filter"](1)[0]["JID"], JID)

    def test_an_unknown_job_and_a_store_that_is_away_are_told_apart(self):
        self.daemon.result("get_load", None)
        self.daemon.result("get_jid", {})
        self.assertIn("no job", json.dumps(self.runners["jobs.list_job"](JID)))
        self.daemon.refuse("get_load", "unavailable", "the database is away")
        with self.assertRaisesRegex(Exception, "the database is away"):
            self.runners["jobs.list_job"](JID)
