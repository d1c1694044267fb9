"""The functions of a returner, in the forms in which Salt calls them, with what they must return."""

import collections
import copy
import inspect
import json
import os
from unittest import mock

import salt.loader
import salt.utils.jid

from support import JID, LOAD, SECRETS, Case, a_load, a_return, depth, source

FUNCTIONS = {
    "returner", "prep_jid", "save_load", "save_minions", "get_load", "get_jid", "get_jids", "get_jids_filter",
    "get_fun", "get_minions", "clean_old_jobs", "update_endtime", "get_endtime", "event_return",
}


class Loading(Case):
    def test_salt_sees_exactly_the_functions_of_a_returner(self):
        shim = self.shim()
        found = {name.split(".", 1)[1] for name in shim.loader if name.startswith("mysql.")}
        self.assertEqual(found, FUNCTIONS)

    def test_it_hides_the_built_in_of_its_name(self):
        self.name = "local_cache"
        shim = self.shim()
        self.assertIn("Hand over the return", shim.returner.__doc__)
        found = {name.split(".", 1)[1] for name in shim.loader if name.startswith("local_cache.")}
        self.assertEqual(found, FUNCTIONS)

    def test_it_takes_the_name_of_a_built_in_with_another_file(self):
        self.name = "syslog"
        shim = self.shim()
        self.assertIn("Hand over the return", shim.returner.__doc__)
        self.assertIn("job id that is given", shim.prep_jid.__doc__)

    def test_it_is_found_where_sync_returners_puts_it(self):
        opts = self.opts()
        self.install(os.path.join(opts["extension_modules"], "returners"))
        self.assertIn("mysql.returner", salt.loader.returners(opts, {}))

    def test_it_is_found_in_module_dirs_by_a_minion(self):
        self.install(os.path.join(self.root, "modules", "_returners"))
        opts = self.opts("minion", {"module_dirs": [os.path.join(self.root, "modules")]})
        self.assertIn("mysql.returner", salt.loader.returners(opts, {}))

    def test_two_names_beside_each_other_do_not_mix(self):
        daemon = self.start()
        self.shim()
        self.name = "mysql_return"
        other = self.shim(OTHER_NAMES=("mysql",))
        other.returner(a_return())
        other.loader["mysql.returner"](a_return())
        self.assertEqual([request["returner"] for request in daemon.requests], ["mysql_return", "mysql"])

    def test_every_function_has_the_arguments_that_salt_passes(self):
        shim = self.shim()
        arguments = {name: list(inspect.signature(getattr(shim, name)).parameters) for name in FUNCTIONS}
        self.assertEqual(arguments["prep_jid"], ["nocache", "passed_jid"])
        self.assertEqual(arguments["save_load"], ["jid", "load", "minions"])
        self.assertEqual(arguments["save_minions"], ["jid", "minions", "syndic_id"])
        self.assertEqual(arguments["get_jids_filter"], ["count", "filter_find_job"])

    def test_defaults_of_arguments_can_be_sent_by_salt(self):
        # `sys.returner_argspec` sends them to the master.
        shim = self.shim()
        for name in FUNCTIONS:
            for parameter in inspect.signature(getattr(shim, name)).parameters.values():
                if parameter.default is not parameter.empty:
                    json.dumps(parameter.default)

    def test_markers_and_header_are_what_the_installer_looks_for(self):
        text = source()
        self.assertEqual(text.count("# --- set by `returnerd salt install` ---\n"), 1)
        self.assertEqual(text.count("# --- end of what is set ---\n"), 1)
        self.assertIn("\ndef returner(", text)
        header = text.split("# --- set by")[1].split("# --- end of")[0]
        for name in ("VIRTUALNAME", "OTHER_NAMES", "SOCKET", "INBOX", "INTERFACES", "TIMEOUT", "INBOX_MAX_BYTES"):
            self.assertIn(f"\n{name} = ", header)

    def test_a_master_that_tears_its_returners_down_has_no_trouble(self):
        shim = self.shim()
        for name in list(shim.loader):
            if name.startswith("mysql."):
                self.assertFalse(hasattr(shim.loader[name], "destroy"))


class Returning(Case):
    def test_a_return_goes_out_as_it_came_but_for_its_overrides(self):
        daemon, shim = self.start(), self.shim("minion")
        ret = a_return(ret_config="alternative", ret_kwargs={"db": "x", "port": 0})
        self.assertIsNone(shim.returner(ret))
        request = daemon.last()
        self.assertEqual(request["op"], "return")
        self.assertEqual(request["ret"], {key: value for key, value in ret.items() if key != "ret_kwargs"})
        self.assertEqual(list(request["ret"]), [key for key in ret if key != "ret_kwargs"])
        self.assertEqual((request["ret_config"], request["ret_kwargs"]), ("alternative", {"db": "x", "port": 0}))
        self.assertEqual((request["returner"], request["id"], request["role"]), ("mysql", "m1", "minion"))

    def test_without_overrides_none_are_sent(self):
        daemon, shim = self.start(), self.shim("minion")
        shim.returner(a_return())
        self.assertNotIn("ret_config", daemon.last())
        self.assertNotIn("ret_kwargs", daemon.last())

    def test_overrides_that_are_no_map_do_not_cost_the_return(self):
        daemon, shim = self.start(), self.shim("minion")
        shim.returner(a_return(ret_kwargs="password=DB-PASSWORD", ret_config=""))
        self.assertNotIn("ret_kwargs", daemon.last())
        self.assertNotIn("ret_config", daemon.last())
        self.assertNotIn(b"DB-PASSWORD", daemon.bodies[0])

    def test_returns_of_every_source_go_out_whole(self):
        daemon, shim = self.start(), self.shim()
        returns = [
            a_return(fun=["test.ping", "test.echo"], fun_args=[[], ["hello"]],
                     **{"return": {"test.ping": True}, "retcode": {"test.ping": 0}, "success": {"test.ping": True}}),
            a_return(jid="req", arg=[], tgt="m1", tgt_type="glob"),
            a_return(jid=JID + "_4711"),
            a_return(resource_id="r1"),
            {"id": "m1", "ret": 5, "fun": "test.ping", "jid": JID},
            {"id": "lab_master", "tgt": "lab_master", "jid": JID, "fun": "runner.jobs.list_jobs",
             "return": {"fun": "runner.jobs.list_jobs", "jid": JID, "return": [], "success": True}},
            {"jid": JID, "id": "m2", "return": {"retcode": 0, "return": 1}, "fun": "test.ping"},
            a_return(schedule="sj", pid=12),
        ]
        for ret in returns:
            shim.returner(copy.deepcopy(ret))
        self.assertEqual([request["ret"] for request in daemon.requests], returns)

    def test_nothing_that_salt_gives_is_changed(self):
        self.start()
        shim = self.shim()
        ret = a_return(ret_kwargs={"a": {1}}, **{"return": collections.OrderedDict(a=(1, {2}), b=b"x")})
        load, events = a_load(load=a_load()), [{"tag": f"salt/job/{JID}/error", "data": a_load()}]
        minions = ["m1"]
        before = copy.deepcopy((ret, load, events, minions))
        shim.returner(ret)
        shim.save_load(JID, load, minions)
        shim.save_minions(JID, minions, syndic_id="s")
        shim.event_return(events)
        self.assertEqual((ret, load, events, minions), before)
        self.assertIsInstance(ret["return"]["a"], tuple)

    def test_what_salt_shares_is_serialised_inside_of_the_call(self):
        daemon, shim = self.start(), self.shim()
        events = [{"tag": "t", "data": {"a": 1}}]
        shim.event_return(events)
        events.clear()
        self.assertEqual(daemon.last()["events"], [{"tag": "t", "data": {"a": 1}}])

    def test_requests_differ_in_their_uid(self):
        daemon, shim = self.start(), self.shim()
        for _ in range(3):
            shim.returner(a_return())
        self.assertEqual(len({request["uid"] for request in daemon.requests}), 3)


class Saving(Case):
    def test_a_published_load_goes_out_in_both_forms_without_secrets(self):
        daemon, shim = self.start(), self.shim()
        shim.save_load(JID, a_load(), ["m1", "m2"])
        shim.save_load(JID, a_load(), minions=["m1", "m2"])
        for request, body in zip(daemon.requests, daemon.bodies):
            self.assertEqual((request["op"], request["jid"], request["minions"]), ("load", JID, ["m1", "m2"]))
            self.assertEqual(request["load"]["cmd"], "publish")
            self.assertEqual(request["load"]["arg"], ["one", {"__kwarg__": True, "two": 2}])
            self.assertEqual(
                request["load"]["kwargs"],
                {"show_timeout": True, "delimiter": ":", "metadata": {"k": "v"}, "ret_config": "alternative"},
            )
            for secret in SECRETS:
                self.assertNotIn(secret, body)

    def test_a_return_in_place_of_a_load_is_told_apart(self):
        daemon, shim = self.start(), self.shim()
        shim.save_load(JID, a_return(cmd="_return", ret_kwargs={"password": "DB-PASSWORD"}))
        self.assertIsNone(daemon.last()["minions"])
        self.assertEqual(daemon.last()["load"]["cmd"], "_return")
        self.assertNotIn(b"DB-PASSWORD", daemon.bodies[0])

    def test_the_load_within_a_syndics_load_is_scrubbed_too(self):
        daemon, shim = self.start(), self.shim()
        shim.save_load(JID, {"jid": JID, "load": a_load(), b"password": "EVE-PASSWORD"})
        for secret in SECRETS:
            self.assertNotIn(secret, daemon.bodies[0])

    def test_secrets_of_a_load_do_not_come_by_the_options_either(self):
        daemon = self.start()
        shim = self.shim(config={"mysql.host": "db", "password": "EVE-PASSWORD", "token": "TOKEN-3"})
        shim.save_load(JID, a_load(), ["m1"])
        for secret in SECRETS:
            self.assertNotIn(secret, daemon.bodies[0])

    def test_the_view_of_a_maps_keys_serves_as_minions(self):
        daemon, shim = self.start(), self.shim()
        shim.save_load(JID, a_load(), minions={"m1": 1, "m2": 2}.keys())
        self.assertEqual(daemon.last()["minions"], ["m1", "m2"])

    def test_a_jid_typed_as_a_number_arrives(self):
        daemon, shim = self.start(), self.shim()
        shim.save_load(int(JID), a_load(), [])
        shim.get_load(int(JID))
        shim.get_load(17)
        # The first two do not fit into 64 bits.
        self.assertEqual([request["jid"] for request in daemon.requests], [JID, JID, 17])

    def test_minions_of_a_syndic_go_out(self):
        daemon, shim = self.start(), self.shim()
        shim.save_minions(JID, ["m1"], syndic_id="syndic-a")
        shim.save_minions(JID, {"m2"})
        first, second = daemon.requests
        self.assertEqual((first["minions"], first["syndic_id"]), (["m1"], "syndic-a"))
        self.assertEqual((second["minions"], second["syndic_id"]), (["m2"], None))

    def test_hostile_minions_raise_nothing(self):
        daemon, shim = self.start(), self.shim()
        for minions in (5, None, {"a": 1}, "m1", [["x"]], object()):
            shim.save_minions(JID, minions, syndic_id=7)
        self.assertEqual(len(daemon.requests), 6)

    def test_the_end_time_goes_out(self):
        daemon, shim = self.start(), self.shim()
        shim.update_endtime(JID, "2026, Dec 01 03:31:39.897742")
        self.assertEqual(daemon.last()["endtime"], "2026, Dec 01 03:31:39.897742")


class Events(Case):
    def test_a_batch_is_one_request(self):
        daemon, shim = self.start(), self.shim()
        events = [{"tag": f"t/{number}", "data": {"n": number, "_stamp": "x"}} for number in range(3)]
        shim.event_return(events)
        self.assertEqual([request["events"] for request in daemon.requests], [events])

    def test_an_empty_batch_asks_nobody(self):
        daemon, shim = self.start(), self.shim()
        shim.event_return([])
        self.assertEqual(daemon.connections, 0)

    def test_the_events_of_a_job_lose_their_secrets(self):
        daemon, shim = self.start(), self.shim()
        tags = [f"salt/job/{JID}/{event}" for event in ("error", "publish", "new")]
        for tag in [*tags, f"salt/run/{JID}/new", f"salt/wheel/{JID}/new", f"syndic/s1/salt/job/{JID}/error"]:
            shim.event_return([{"tag": tag, "data": a_load()}])
        self.assertEqual(len(daemon.bodies), 6)
        for body in daemon.bodies:
            for secret in SECRETS:
                self.assertNotIn(secret, body)

    def test_other_events_keep_keys_of_these_names(self):
        daemon, shim = self.start(), self.shim()
        data = {"key": "k", "username": "u", "token": 5}
        shim.event_return([{"tag": "acme/login", "data": dict(data, ret_kwargs={"p": 1})}])
        self.assertEqual(daemon.last()["events"][0]["data"], data)

    def test_events_of_odd_shape_do_not_cost_the_batch(self):
        daemon, shim = self.start(), self.shim()
        shim.event_return([{"tag": b"x", "data": [1]}, "text", {"data": {"a": 1}}, {"tag": "t"}])
        self.assertEqual(len(daemon.last()["events"]), 4)


class Asking(Case):
    def test_a_load_is_parsed(self):
        daemon, shim = self.start(), self.shim()
        daemon.result("get_load", json.dumps(LOAD))
        self.assertEqual(shim.get_load(JID), LOAD)

    def test_an_unknown_job_has_an_empty_load(self):
        daemon, shim = self.start(), self.shim()
        daemon.result("get_load", None)
        self.assertEqual(shim.get_load(JID), {})

    def test_a_load_that_cannot_be_had_is_an_error_never_empty(self):
        daemon, shim = self.start(), self.shim()
        for code in ("unavailable", "full", "unsupported", "internal", "options", "unknown_returner"):
            daemon.refuse("get_load", code, "the database is away; hint: look")
            with self.assertRaisesRegex(Exception, "the database is away; hint: look"):
                shim.get_load(JID)
        for wrong in ("[1]", "{", '"{}"', 7):
            daemon.result("get_load", wrong)
            with self.assertRaises(Exception):
                shim.get_load(JID)

    def test_without_a_daemon_every_question_is_an_error(self):
        shim = self.shim()
        questions = [
            (shim.get_load, JID), (shim.get_jid, JID), (shim.get_fun, "test.ping"), (shim.get_jids,),
            (shim.get_jids_filter, 5), (shim.get_minions,), (shim.get_endtime, JID),
        ]
        for function, *arguments in questions:
            with self.assertRaisesRegex(Exception, "returnerd cannot be reached"):
                function(*arguments)
        self.assertEqual(os.listdir(self.inbox), [])

    def test_errors_are_none_that_salt_takes_for_a_missing_returner(self):
        with self.assertRaises(Exception) as caught:
            self.shim().get_load(JID)
        self.assertNotIsInstance(caught.exception, (KeyError, TypeError))

    def test_the_returns_of_a_job_are_whole(self):
        daemon, shim = self.start(), self.shim()
        whole = a_return(out="highstate")
        daemon.result("get_jid", {"m1": json.dumps(whole)})
        self.assertEqual(shim.get_jid(JID), {"m1": whole})
        daemon.result("get_jid", {})
        self.assertEqual(shim.get_jid(JID), {})

    def test_a_return_that_cannot_be_read_hides_no_other(self):
        daemon, shim = self.start(), self.shim()
        deep = '{"return": ' + "[" * 990 + "]" * 990 + "}"
        daemon.result("get_jid", {"m1": "{", "m2": json.dumps(a_return()), "m3": deep * 2})
        found = shim.get_jid(JID)
        self.assertEqual(found["m2"], a_return())
        self.assertEqual(set(found), {"m1", "m2", "m3"})
        self.assertTrue(all("return" in ret for ret in found.values()))

    def test_deep_returns_come_back(self):
        daemon, shim = self.start(), self.shim()
        daemon.result("get_jid", {"m1": '{"return": ' + '{"a": ' * 600 + "1" + "}" * 600 + "}"})
        self.assertEqual(depth(shim.get_jid(JID)["m1"]["return"]), 600)

    def test_jobs_have_the_shape_of_the_job_list(self):
        daemon, shim = self.start(), self.shim()
        end = "2026, Dec 01 03:30:52.000000"
        load = dict(LOAD, kwargs={"metadata": {"k": "v"}}, EndTime=end)
        odd = {"20261201033051370967": "{", "20261201033051370968": '{"arg": 5}'}
        daemon.result("get_jids", {JID: json.dumps(load), **odd})
        jobs = shim.get_jids()
        self.assertEqual(len(jobs), 3)
        self.assertEqual(jobs[JID], {
            "Function": "test.arg", "Arguments": [1], "Target": "*", "Target-type": "glob", "User": "ops",
            "StartTime": "2026, Dec 01 03:30:51.370966", "Metadata": {"k": "v"}, "Minions": ["m1", "m2"],
            "EndTime": end,
        })
        for job in jobs.values():
            self.assertLessEqual({"Function", "Arguments", "Target", "Target-type", "User", "StartTime"}, set(job))

    def test_the_newest_jobs_keep_their_order(self):
        daemon, shim = self.start(), self.shim()
        jids = ["20261201033051370966", "20261201033051370970"]
        daemon.result("get_jids_filter", [[jid, json.dumps(LOAD)] for jid in jids])
        jobs = shim.get_jids_filter("5")
        self.assertEqual([job["JID"] for job in jobs], jids)
        self.assertEqual(jobs[0]["Function"], "test.arg")
        self.assertEqual((daemon.last()["count"], daemon.last()["filter_find_job"]), (5, True))
        shim.get_jids_filter(-1, False)
        self.assertEqual((daemon.last()["count"], daemon.last()["filter_find_job"]), (0, False))

    def test_the_latest_returns_of_a_function(self):
        daemon, shim = self.start(), self.shim("minion")
        daemon.result("get_fun", {"m1": json.dumps(a_return())})
        self.assertEqual(shim.get_fun("test.ping"), {"m1": a_return()})
        self.assertEqual(daemon.last()["fun"], "test.ping")

    def test_minions_and_end_times(self):
        daemon, shim = self.start(), self.shim()
        daemon.result("get_minions", ["m1", "m2"])
        daemon.result("get_endtime", "2026, Dec 01 03:31:39.897742")
        self.assertEqual(shim.get_minions(), ["m1", "m2"])
        self.assertEqual(shim.get_endtime(JID), "2026, Dec 01 03:31:39.897742")
        daemon.result("get_endtime", None)
        self.assertIs(shim.get_endtime(JID), False)

    def test_text_of_any_script_comes_back(self):
        daemon, shim = self.start(), self.shim()
        daemon.result("get_jid", {"größer": json.dumps({"return": "naïve → 日本 🚀"}, ensure_ascii=False)})
        self.assertEqual(shim.get_jid(JID), {"größer": {"return": "naïve → 日本 🚀"}})


class JobIds(Case):
    def test_a_new_id_asks_nobody_and_differs_from_the_last(self):
        daemon, shim = self.start(), self.shim()
        jids = [shim.prep_jid(nocache=False, passed_jid=None) for _ in range(200)]
        self.assertEqual(len(set(jids)), 200)
        self.assertTrue(all(salt.utils.jid.is_jid(jid) for jid in jids))
        self.assertEqual(daemon.connections, 0)

    def test_a_clock_that_stands_still_for_a_moment_gives_no_id_twice(self):
        shim = self.shim()
        ids = iter(["1", "1", "1", "2", "2", "3"])
        with mock.patch("salt.utils.jid.gen_jid", lambda opts: next(ids)):
            self.assertEqual([shim.prep_jid(), shim.prep_jid()], ["1", "2"])

    def test_a_given_id_is_kept_in_every_form(self):
        shim = self.shim()
        self.assertEqual(shim.prep_jid(False, passed_jid=JID), JID)
        self.assertEqual(shim.prep_jid(nocache=True, passed_jid=JID), JID)
        self.assertEqual(shim.prep_jid(passed_jid=JID), JID)

    def test_the_option_unique_jid_is_followed(self):
        jid = self.shim(config={"unique_jid": True}).prep_jid(nocache=False)
        self.assertTrue(jid.endswith(f"_{os.getpid()}"), jid)

    def test_an_older_generator_without_arguments_serves_too(self):
        shim = self.shim()
        with mock.patch("salt.utils.jid.gen_jid", lambda: JID):
            self.assertEqual(shim.prep_jid(), JID)

    def test_a_generator_that_fails_does_not_stop_a_publish(self):
        shim = self.shim()
        with mock.patch("salt.utils.jid.gen_jid", side_effect=KeyError("x")):
            self.assertTrue(salt.utils.jid.is_jid(shim.prep_jid(nocache=False, passed_jid=None)))
