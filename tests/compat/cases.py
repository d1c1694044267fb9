"""
The cases: what a Salt master or minion may hand to a returner, each as a list of calls of the returner's functions.

A case has job ids, minion ids, functions and tags of its own, all beginning with its number, so that what a store holds can
be told apart by case afterwards. Where a case rebuilds a report of users, its comment names the number of the report.
"""

import collections
import datetime

CASES = []

# Salt hands over a copy of these; a returner that changes its argument must not change the case.
WIDE = "grüße, 世界 – \"it's\" \\ %s %(x)s ' ; -- \t\n∑"
EMOJI = "done 🚀 𝒳"


class Case:
    """One case while it is being told."""

    def __init__(self, number, name):
        self.number, self.name, self.calls = number, name, []
        self.jids, self.ids, self.funs, self.tags = [], [], [], []
        self.jid_text = None

    def _of(self, known, text):
        if text not in known:
            known.append(text)
        return text

    def jid(self, index=0):
        """A job id: by default one for the whole case. The days lie in the past, so that nothing is in the future."""
        return self._of(self.jids, self.jid_text or f"20261101{self.number:04d}{index:02d}000000")

    def id(self, index=1):
        return self._of(self.ids, f"c{self.number:02d}-m{index}")

    def fun(self, name="test.echo"):
        return self._of(self.funs, f"c{self.number:02d}_{name}")

    def tag(self, text):
        return self._of(self.tags, f"c{self.number:02d}/{text}")

    def ret(self, value=True, drop=(), **keys):
        """A return as the minion gives it to a returner."""
        ret = {
            "success": True, "return": value, "retcode": 0, "jid": self.jid(), "fun": self.fun(), "fun_args": [],
            "user": "root", "id": self.id(),
        }
        ret.update(keys)
        for key in drop:
            del ret[key]
        for key, known in (("id", self.ids), ("jid", self.jids)):
            if isinstance(ret.get(key), str) and ret[key] != "req":
                self._of(known, ret[key])
        self.calls.append(("returner", [ret]))
        return ret

    def publish(self, minions=None, jid=None, **keys):
        """The load that the master saves when it publishes a job."""
        jid = jid or self.jid()
        load = {
            "cmd": "publish", "tgt": "*", "fun": self.fun(), "arg": ["one", {"__kwarg__": True, "two": 2}],
            "tgt_type": "glob", "ret": "", "jid": jid, "user": "ops",
            "kwargs": {"show_timeout": True, "show_jid": False, "delimiter": ":"},
        }
        load.update(keys)
        self.calls.append(("prep_jid", [False, jid]))
        self.calls.append(("save_load", [jid, load] + ([minions] if minions is not None else [])))

    def answered(self, value=True, **keys):
        """A return as the master handles it: saved as a load first, then given to the returner."""
        self.ret(value, cmd="_return", ts=1796096499, _stamp="2026-12-01T03:41:39.618194", **keys)
        ret = self.calls.pop()[1][0]
        self.calls.append(("save_load", [ret["jid"], ret]))
        self.calls.append(("returner", [ret]))

    def events(self, *events):
        self.calls.append(("event_return", [[{"tag": tag, "data": data} for tag, data in events]]))

    def call(self, function, *arguments):
        self.calls.append((function, list(arguments)))


def unpublished(tell):
    """A case in which no master has saved the load of the jobs."""
    one = Case(len(CASES) + 1, tell.__name__)
    CASES.append(one)
    tell(one)
    return one


def case(tell):
    """A case in which the master has saved the load of each job before the first return, as it does."""
    one = unpublished(tell)
    saved = {arguments[0] for function, arguments in one.calls if function == "save_load"}
    calls, one.calls = one.calls, []
    for jid in one.jids:
        if jid not in saved and any(function == "returner" for function, _ in calls):
            one.publish(jid=jid)
    one.calls += calls


# Values. One case for each, as a report about one value never names another.

VALUES = {
    "true": True, "false": False, "nothing": None, "zero": 0, "negative": -42, "a_float": 1.5, "a_whole_float": 3.0,
    "a_small_float": 1.5e-300, "the_largest_signed": 2**63 - 1, "the_largest_unsigned": 2**64 - 1,
    "beyond_64_bits": 2**70, "empty_text": "", "wide_text": WIDE,
    "four_byte_text": EMOJI,  # 29
    "control_characters": "a\x01\x1f\x7f\r\nb", "nul": "a\x00b",
    "a_text_that_looks_like_json": '{"a": [1, "b\\n"]}', "a_text_that_looks_like_sql": "'); DROP TABLE jids; --",
    "not_a_number": float("nan"), "infinity": [float("inf"), float("-inf")],  # 35
    "utf8_bytes": "grüße".encode(), "binary": b"\x80\xff\x00\x01", "a_bytearray": bytearray(b"abc"),
    "empty_list": [], "empty_map": {}, "a_list": [1, "two", None, [3.5, {"four": False}]],
    "a_tuple": ("foo", ("bar", 1)), "a_set": {"tags": {"v1"}},  # 30
    "an_ordered_map": collections.OrderedDict([("z", 1), ("a", 2), ("m", 3)]),
    "a_date_time": {"at": datetime.datetime(2026, 1, 5, 9, 30, 15)},  # 30
    "a_date_time_with_a_zone": datetime.datetime(2026, 1, 5, 9, 30, 15, 250000, tzinfo=datetime.timezone.utc),
    "a_date": datetime.date(2026, 1, 5), "keys_that_are_no_text": {1: "int", None: "none", 2.5: "float", "s": "text"},
    "a_boolean_key": {True: "yes", False: "no"}, "keys_that_collide": {1: "int", "1": "text"},
    "keys_of_bytes": {b"raw": b"value"}, "a_tuple_key": {(1, "a"): "pair"},
    "keys_with_dots_and_dollars": {"a.b": {"$set": 1, "": "empty", "c d": [{"e.f": 2}]}},
    "deep_nesting": None, "one_mebibyte": "x" * (1 << 20), "many_lines": "line\n" * 5000,
    "a_trimmed_value": {"stdout": "VALUE_TRIMMED", "retcode": 0},  # 34
    "python_like": {"a": [1, None, True], "b": "größer"},  # 31
}
for _ in range(300):
    VALUES["deep_nesting"] = {"down": VALUES["deep_nesting"]}


def _value(name, value):
    def tell(one):
        one.ret(value)

    tell.__name__ = "value_" + name
    case(tell)


for _name, _content in VALUES.items():
    _value(_name, _content)


# Shapes of a return, by the source it comes from.


@case
def a_command_that_failed(one):  # 22
    one.ret("hi", success=False, retcode=3, fun_args=["echo hi; exit 3"])


@case
def an_unknown_function(one):
    one.ret("'test.nosuch' is not available.", success=False, retcode=1, out="nested")


@case
def several_functions(one):
    fun = [one.fun("test.ping"), one.fun("test.echo")]
    one.ret(
        {fun[0]: True, fun[1]: "hello"}, fun=fun, fun_args=[[], ["hello"]],
        retcode={fun[0]: 0, fun[1]: 0}, success={fun[0]: True, fun[1]: True},
    )


@case
def several_functions_of_which_one_failed(one):
    fun = [one.fun("test.ping"), one.fun("cmd.run")]
    one.ret(
        {fun[0]: True, fun[1]: ""}, fun=fun, fun_args=[[], ["exit 4"]],
        retcode={fun[0]: 0, fun[1]: 4}, success={fun[0]: True, fun[1]: False},
    )


@case
def a_function_twice_in_one_job(one):  # 23
    fun = [one.fun("test.echo"), one.fun("test.sleep"), one.fun("test.echo")]
    one.ret(["one", True, "two"], fun=fun, fun_args=[["one"], [1], ["two"]], retcode=[0, 0, 0], success=[True, True, True])


@case
def keyword_arguments(one):
    one.ret(True, fun_args=["a", {"__kwarg__": True, "b": {"c": [1]}}])


@unpublished
def a_return_without_a_load(one):
    one.ret(True)


@unpublished
def salt_call(one):
    one.ret(
        {"args": ("foo",), "kwargs": {"bar": 2, "__pub_fun": "test.arg", "__pub_tgt": "salt-call"}},
        drop=("user",), fun_args=["foo", "bar=2"],
    )


@unpublished
def a_schedule(one):
    one.ret(
        {"args": ["q"], "kwargs": {"w": 1}}, drop=("user",), schedule="sj", pid=1462, fun_args=["q", {"w": 1}],
        metadata={"a": "b", "_TOS": "+0000", "_TS": "Tue Dec  1 03:31:39 2026", "_TT": "2026 Dec 1 03 31 2"},
    )


@unpublished
def the_placeholder_job_id(one):  # 24
    one.ret(True, jid="req", id=one.id(1), fun=one.fun("test.ping"))
    one.ret("q", jid="req", id=one.id(2), fun=one.fun("test.echo"))


@case
def a_unique_job_id(one):
    one.jid_text = f"20261101{one.number:04d}00000000_14620"
    one.ret(True)


@case
def module_run(one):
    one.ret(True, drop=("fun_args", "return"), ret={"test.ping": True})


@case
def metadata_and_a_master_id(one):
    one.ret(True, metadata={"ticket": "T 1", "k": [1]}, master_id="master1")


@case
def options_of_the_call(one):
    one.ret(True, ret_config="", ret_kwargs={})


@case
def a_runner(one):  # 67
    one.ret(
        {"jid": "20261101000000000000", "fun": "runner.jobs.list_jobs", "return": {"a": 1}, "success": True},
        drop=("success", "retcode", "fun_args"), fun=one.fun("runner.jobs"), tgt="compat_master",
    )


@case
def through_a_syndic(one):
    one.ret(True, drop=("user",), master_id="syndic1", _stamp="2026-12-01T03:41:39.618194")


@case
def salt_ssh(one):
    one.ret(True, drop=("user", "success", "retcode", "fun_args"))


STATES = {
    "test_|-says hello_|-grüße_|-succeed_with_changes": {
        "name": "grüße", "changes": {"testing": {"old": "Unchanged", "new": "Something"}}, "result": True,
        "comment": "Success!", "__sls__": "demo", "__run_num__": 0, "start_time": "09:30:15.000001",
        "duration": 0.5, "__id__": "says hello",
    },
    "test_|-fails_|-on purpose_|-fail_without_changes": {
        "name": "on purpose", "changes": {}, "result": False, "comment": "Failure!", "__sls__": "demo",
        "__run_num__": 1, "start_time": "09:30:15.000002", "duration": 0.25, "__id__": "fails",
    },
}


@case
def a_state_run_that_failed(one):
    one.ret(STATES, success=False, retcode=2, fun_args=["demo"], out="highstate")


@case
def a_failed_state_run_as_the_master_changes_it(one):
    chunk = {
        "retcode": 2, "jid": one.jid(), "id": one.id(), "success": False, "return": "Error: test.fail", "fun": "state.sls",
        "user": "root", "_stamp": "2026-12-01T03:41:39.618194",
    }
    states = {key: dict(value, **(chunk if not value["result"] else {"retcode": 2})) for key, value in STATES.items()}
    one.ret(states, success=False, retcode=2, cmd="_return", _stamp=chunk["_stamp"], ts=1796096499, out="highstate")


@case
def a_failed_state_that_says_success(one):
    one.ret(STATES, success=True, retcode=0)


@case
def a_state_run_that_was_refused(one):
    one.ret(["Rendering SLS 'base:demo' failed: mapping values are not allowed here"], success=False, retcode=1)


@case
def a_resource(one):
    one.ret(True, resource_id="ssh/web1")


@case
def a_signed_return(one):
    one.ret(True, sig=b"\x01\x80signature", cmd="_return", _stamp="2026-12-01T03:41:39.618194", ts=1796096499)


@case
def no_outcome(one):
    one.ret(True, drop=("success", "retcode"))


@case
def a_long_function_name(one):
    one.ret(True, fun=one.fun("a_module_with_a_long_name.and_a_function_with_an_even_longer_name"))


@case
def a_long_minion_id(one):
    one.ret(True, id=one._of(one.ids, f"c{one.number:02d}-" + "web." * 45 + "example.org"))


@case
def wide_characters_everywhere(one):
    one.ret(WIDE, id=one._of(one.ids, f"c{one.number:02d}-größe"), fun=one.fun("mod.größe"), fun_args=[WIDE], user="bjørn")


# Sequences of calls.


@case
def the_same_return_twice(one):  # 16
    ret = one.ret({"n": 1})
    one.call("returner", dict(ret))


@case
def another_return_of_the_same_job(one):
    one.ret("first")
    one.ret("second")


@case
def two_minions(one):
    one.ret(1, id=one.id(1))
    one.ret(2, id=one.id(2))


@case
def a_function_again_in_a_later_job(one):
    one.ret("old", jid=one.jid(0))
    one.ret("new", jid=one.jid(1))


@case
def a_load(one):
    one.publish()


@case
def a_load_from_two_masters(one):  # 14
    one.publish()
    one.publish()
    one.ret(True)


@case
def a_load_and_the_minions_that_are_expected(one):  # 21
    one.publish(minions=[one.id(2), one.id(1), one.id(3)])
    one.ret(1, id=one.id(1))


@case
def a_published_load_and_the_returns_as_loads(one):  # 15
    one.publish(minions=[one.id(1), one.id(2)])
    one.answered(1, id=one.id(1))
    one.answered(2, id=one.id(2))


@unpublished
def a_return_whose_load_is_unknown(one):  # 17
    one.answered("from another master")


@case
def a_load_with_wide_characters(one):
    one.publish(tgt=EMOJI, arg=[WIDE, EMOJI])


@case
def a_load_of_several_functions(one):
    one.publish(fun=[one.fun("test.ping"), one.fun("test.echo")], arg=[[], ["hello"]])


@case
def a_load_for_a_list(one):
    one.publish(tgt=[one.id(1), one.id(2)], tgt_type="list", minions=[one.id(1), one.id(2)])


@case
def a_load_with_values_that_json_lacks(one):
    one.publish(arg=[{"s"}, datetime.datetime(2026, 1, 5), b"\x80"])


@case
def a_load_with_secrets(one):  # 9844
    one.publish(key="the master's key", token="abc", eauth="pam", username="eve", password="pw")


@case
def a_load_to_find_a_job(one):
    one.publish(fun="saltutil.find_job")


@case
def minions_from_a_syndic(one):  # 20
    one.publish(minions=[one.id(1)])
    one.call("save_minions", one.jid(), [one.id(2)], "syndic-a")
    one.ret(1, id=one.id(2))


@case
def the_end_of_a_job(one):
    one.publish(minions=[one.id(1)])
    one.call("update_endtime", one.jid(), "2026, Dec 01 03:31:39.897742")


# Events.


@case
def a_job_event(one):
    one.events((one.tag("salt/job/20261101000000000000/new"), {
        "jid": "20261101000000000000", "tgt_type": "glob", "tgt": "m1", "user": "root", "fun": "test.arg", "arg": [],
        "minions": ["m1"], "missing": [], "_stamp": "2026-12-01T03:31:39.897742",
    }))


@case
def several_events(one):  # 4
    one.events(*((one.tag(f"salt/auth/{n}"), {"id": f"m{n}", "act": "accept", "_stamp": "2026"}) for n in range(3)))


@case
def a_large_event(one):  # 32
    ids = [f"minion-{n:03d}.example.org" for n in range(80)]
    one.events((one.tag("salt/presence/present"), {"present": ids, "_stamp": "2026"}))


@case
def an_event_with_wide_characters(one):
    one.events((one.tag("custom/größe"), {"text": WIDE, "more": EMOJI, "_stamp": "2026"}))


@case
def an_event_with_values_that_json_lacks(one):
    one.events((one.tag("custom/values"), {"s": {"v1"}, "at": datetime.datetime(2026, 1, 5), "b": b"\x80", "_stamp": "2026"}))


@case
def an_event_with_a_nul(one):
    one.events((one.tag("custom/nul"), {"text": "a\x00b", "n": float("nan"), "_stamp": "2026"}))


@case
def an_event_with_a_long_tag(one):
    one.events((one.tag("custom/" + "long/" * 60), {"_stamp": "2026"}))


@case
def a_good_event_beside_a_bad_one(one):
    one.events((one.tag("bad"), {"s": {"v1"}, "_stamp": "2026"}), (one.tag("good"), {"n": 1, "_stamp": "2026"}))


@case
def no_event_at_all(one):
    one.events()
