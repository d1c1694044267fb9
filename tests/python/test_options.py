"""Which of Salt's entries go to the daemon, and what else a request says about who asks."""

import time

import salt.loader
import salt.utils.immutabletypes

from support import Case, Shim, a_return


class Layers(Case):
    def layers(self, ret=None, **settings):
        daemon = self.daemon = getattr(self, "daemon", None) or self.start()
        self.shim("minion", **settings).returner(ret or a_return())
        return daemon.last()["layers"]

    def test_entries_are_sent_if_a_part_of_their_name_is_the_returners(self):
        config = {
            "mysql": {"host": "n1", "port": 0, "user": ""},
            "mysql.db": "flat",
            "alternative.mysql": {"port": False},
            "alternative.mysql.host": "alt",
            "returner.mysql.tls": True,
            "mysql_return.user": "u",
            "mysqlx.host": "no",
            "xmysql": "no",
            "other.host": "no",
            "mysql-host": "no",
        }
        found = self.layers(config=config)["opts"]
        self.assertEqual(found, {key: value for key, value in config.items() if value != "no"})

    def test_every_source_is_sent_apart(self):
        layers = self.layers(
            config={"mysql.host": "opts"},
            grains={"mysql.host": "grains", "os": "Debian"},
            pillar={"mysql": {"host": "pillar"}, "master": {"mysql.host": "master", "id": "x"}, "secret": "no"},
        )
        self.assertEqual(layers, {
            "opts": {"mysql.host": "opts"},
            "grains": {"mysql.host": "grains"},
            "pillar": {"mysql": {"host": "pillar"}},
            "master": {"mysql.host": "master"},
        })

    def test_without_the_masters_options_in_the_pillar_there_is_no_such_layer(self):
        self.assertEqual(set(self.layers(pillar={"master": "text"})), {"opts", "grains", "pillar"})

    def test_false_zero_and_empty_are_values(self):
        values = {"mysql.a": False, "mysql.b": 0, "mysql.c": "", "mysql.d": None, "mysql.e": []}
        self.assertEqual(self.layers(config=values)["opts"], values)

    def test_grains_of_odd_shape_are_passed_on_for_the_daemon_to_judge(self):
        self.assertEqual(self.layers(grains={"mysql": True, 5: "x"})["grains"], {"mysql": True})

    def test_a_profile_is_sent_wherever_it_is_named(self):
        profile = {"mysql.api_key": "k"}
        for config in (
            {"mysql.profile": "ours"},
            {"mysql": {"profile": "ours"}},
            {"alternative.mysql.profile": "ours"},
            {"mysql.mysql_profile": "ours"},
        ):
            self.assertEqual(self.layers(config={**config, "ours": profile})["opts"].get("ours"), profile, config)
        ret = a_return(ret_kwargs={"profile": "ours"})
        self.assertEqual(self.layers(ret, pillar={"ours": profile})["pillar"], {"ours": profile})

    def test_a_profile_that_is_no_map_is_not_sent(self):
        found = self.layers(config={"mysql.profile": "id"})["opts"]
        self.assertEqual(found, {"mysql.profile": "id"})

    def test_nothing_else_of_the_configuration_leaves_salt(self):
        self.layers(config={"mysql.host": "db", "api_key": "SECRET-1"}, pillar={"x": {"password": "SECRET-2"}})
        self.assertNotIn(b"SECRET", self.daemon.bodies[-1])

    def test_options_of_salts_own_map_types_are_sent_with_their_values(self):
        frozen = salt.utils.immutabletypes.freeze({"host": "db", "hosts": ["a"], "more": {"x": {1}}})
        self.assertEqual(
            self.layers(pillar={"mysql": frozen})["pillar"],
            {"mysql": {"host": "db", "hosts": ["a"], "more": {"x": [1]}}},
        )

    def test_masked_pillars_are_sent_unmasked(self):
        try:
            from salt.utils.secret import hide
        except ImportError:
            self.skipTest("this release masks no pillar")
        pillar = hide({"mysql": {"pass": "hunter2", "hosts": ["a"]}, "mysql.port": 3306})
        self.assertEqual(
            self.layers(pillar=pillar)["pillar"],
            {"mysql": {"pass": "hunter2", "hosts": ["a"]}, "mysql.port": 3306},
        )

    def test_the_loaders_view_of_the_options_is_neither_copied_nor_changed(self):
        try:
            from salt.utils.optsdict import OptsDict
        except ImportError:
            self.skipTest("this release has no such view")
        daemon = self.start()
        self.shim("minion", config={"mysql": {"host": "db", "tls": {"ca": "x"}}})
        self.options["pillar"] = {"master": {"mysql": {"port": 1}}, "mysql": {"deep": {"a": [1]}}}
        view = OptsDict.from_parent(OptsDict.from_dict(self.options))
        shim = Shim(salt.loader.returners(view, {}), "mysql")
        shim.returner(a_return())
        self.assertEqual(daemon.last()["layers"], {
            "opts": {"mysql": {"host": "db", "tls": {"ca": "x"}}},
            "grains": {},
            "pillar": {"mysql": {"deep": {"a": [1]}}},
            "master": {"mysql": {"port": 1}},
        })


class Envelope(Case):
    def test_it_says_who_asks_and_when(self):
        daemon = self.start()
        began = time.time()
        self.shim("minion").returner(a_return())
        self.shim("master").returner(a_return())
        ended = time.time()
        minion, master = daemon.requests
        self.assertEqual((minion["id"], minion["role"]), ("m1", "minion"))
        self.assertEqual((master["id"], master["role"]), ("lab_master", "master"))
        self.assertTrue(began <= minion["at"] <= master["at"] <= ended)
        self.assertEqual((minion["v"], minion["returner"]), (1, "mysql"))

    def test_it_says_how_long_jobs_are_kept(self):
        daemon = self.start()
        self.shim(config={"keep_jobs_seconds": 7, "archive_jobs": True}).returner(a_return())
        salt_says = daemon.last()["salt"]
        self.assertEqual((salt_says["keep_jobs_seconds"], salt_says["archive_jobs"]), (7, True))
        self.assertLessEqual(set(salt_says), {"keep_jobs_seconds", "keep_jobs", "archive_jobs", "cachedir", "hash_type"})

    def test_salts_configuration_names_another_socket_and_inbox(self):
        daemon = self.start()
        config = {"returnerd": {"socket": self.socket, "inbox": self.inbox}}
        nowhere = {"SOCKET": f"{self.root}/none", "INBOX": f"{self.root}/none"}
        self.shim(config=config, **nowhere).returner(a_return())
        self.assertEqual(len(daemon.requests), 1)
        daemon.close()
        self.shim(config=config, **nowhere).returner(a_return())
        self.assertEqual(len(self.frames()), 1)

    def test_a_wrong_map_returnerd_is_passed_over(self):
        daemon = self.start()
        for wrong in ("text", [1], {"socket": None, "inbox": ""}):
            self.shim(config={"returnerd": wrong}).returner(a_return())
        self.assertEqual(len(daemon.requests), 3)
