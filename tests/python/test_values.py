"""Any value that a function of a minion can return arrives, or becomes text; nothing raises."""

import collections
import datetime
import decimal
import enum
import math
import pathlib
import threading
import types
import unittest
import uuid

import msgpack
import salt.defaults
import salt.payload
import salt.utils.data
import salt.utils.immutabletypes
import salt.utils.odict

from support import Case, a_load, a_return, depth, source, unpack


def encoder():
    """The shim's own encoder, by itself."""
    module = types.ModuleType("shim")
    exec(compile(source(), "shim", "exec"), vars(module))
    return module


SHIM = encoder()


class Hostile:
    """Raises whatever it is asked."""

    @property
    def __class__(self):
        raise RuntimeError

    def __str__(self):
        raise RuntimeError

    __repr__ = __str__


class HostileMap(dict):
    def items(self):
        raise RuntimeError

    __iter__ = keys = values = items


class Level(enum.IntEnum):
    HIGH = 7


class Name(str):
    pass


def nested(levels, kind):
    value = "innermost"
    for _ in range(levels):
        value = {"a": value} if kind is dict else [value]
    return value


def innermost(value):
    while isinstance(value, (dict, list)):
        (value,) = value.values() if isinstance(value, dict) else value
    return value


CASES = [
    # given, expected
    (None, None), (True, True), (5, 5), (-(2**63), -(2**63)), (2**64 - 1, 2**64 - 1),
    (2**64, str(2**64)), (-(2**63) - 1, str(-(2**63) - 1)), (2**200, str(2**200)),
    (1.5, 1.5), (math.inf, math.inf),
    ("naïve → 日本 🚀", "naïve → 日本 🚀"), ("a\0b", "a\0b"), ("\ud800 and \udc80", "\ud800 and \udc80"), ("", ""),
    (b"\xff\x00", b"\xff\x00"), (bytearray(b"x"), b"x"), (memoryview(b"xy"), b"xy"), (memoryview(b"xyz")[::2], b"xz"),
    ((1, (2, 3)), [1, [2, 3]]), ({1}, [1]), (frozenset({"a"}), ["a"]), ([], []), ({}, {}),
    (collections.OrderedDict([("b", 1), ("a", 2)]), {"b": 1, "a": 2}),
    (salt.utils.odict.OrderedDict([("b", (1,))]), {"b": [1]}),
    (collections.defaultdict(list, a=[1]), {"a": [1]}), (collections.Counter("aa"), {"a": 2}),
    (collections.deque([1, 2]), [1, 2]), (collections.ChainMap({"a": 1}), {"a": 1}),
    (types.MappingProxyType({"a": {1}}), {"a": [1]}),
    ({"a": 1}.keys(), ["a"]), ({"a": 1}.values(), [1]), ({"a": 1}.items(), [["a", 1]]),
    ({1: "a", None: "b", 1.5: "c", False: "d", b"\xff": "e"}, {1: "a", None: "b", 1.5: "c", False: "d", b"\xff": "e"}),
    (datetime.datetime(2026, 1, 5, 9, 30, 15), msgpack.ExtType(78, b"20260105T09:30:15.000000")),
    (datetime.datetime(1, 2, 3, 4, 5, 6, 7), msgpack.ExtType(78, b"00010203T04:05:06.000007")),
    (datetime.date(2026, 1, 5), msgpack.ExtType(78, b"20260105T00:00:00.000000")),
    (
        datetime.datetime(2026, 1, 5, 9, 30, tzinfo=datetime.timezone(datetime.timedelta(hours=2))),
        "2026-01-05T09:30:00+02:00",
    ),
    (salt.defaults.NOT_SET, msgpack.ExtType(79, msgpack.packb(("NOT_SET", None)))),
    (msgpack.ExtType(5, b"x"), msgpack.ExtType(5, b"x")),
    (salt.utils.immutabletypes.freeze({"a": [1, {2}]}), {"a": [1, [2]]}),
    (salt.utils.data.CaseInsensitiveDict({"A": 1}), {"A": 1}),
    (decimal.Decimal("1.50"), "1.50"), (datetime.timedelta(1), "1 day, 0:00:00"), (datetime.time(9), "09:00:00"),
    (uuid.UUID(int=1), str(uuid.UUID(int=1))), (1 + 2j, "(1+2j)"), (pathlib.PurePosixPath("/x"), "/x"),
    (range(3), "range(0, 3)"), (Level.HIGH, 7), (Name("x"), "x"), ({Name("k"): Name("v")}, {"k": "v"}),
    (ValueError("no"), "no"),
]


class Encoding(unittest.TestCase):
    def test_every_value_becomes_what_salt_makes_of_it_or_text(self):
        for given, expected in CASES:
            with self.subTest(given=repr(given)):
                self.assertEqual(unpack(SHIM._encode(given)), expected)
                # Beside something that is too deep for the packer in C, the other way of writing is taken.
                found = unpack(SHIM._encode([given, nested(997, list)]))
                self.assertEqual(found[0], expected)

    def test_not_a_number_stays_so(self):
        self.assertTrue(math.isnan(unpack(SHIM._encode(math.nan))))

    def test_both_ways_of_writing_give_the_same_bytes(self):
        for given, _ in CASES:
            with self.subTest(given=repr(given)):
                self.assertEqual(SHIM._encode_slowly(given), SHIM._encode(given))

    def test_dates_and_constants_are_read_by_salt(self):
        value = {"at": datetime.datetime(2026, 1, 5, 9, 30, 15, 4), "c": salt.defaults.NOT_SET}
        self.assertEqual(salt.payload.loads(SHIM._encode(value), encoding="utf-8"), value)

    def test_lists_and_maps_of_every_length_are_read(self):
        for length in (0, 15, 16, 31, 32, 65535, 65536):
            for value in (list(range(length)), dict.fromkeys(range(length)), "x" * length, b"x" * length):
                self.assertEqual(unpack(SHIM._encode_slowly(value)), value)

    def test_a_key_that_is_a_tuple_arrives(self):
        self.assertEqual(unpack(SHIM._encode({(1, "a"): {2}})), {(1, "a"): (2,)})

    def test_deep_values_arrive_whole_up_to_what_the_daemon_takes(self):
        for kind in (dict, list):
            for levels in (1, 400, 511, 512, 600, *range(980, 1001)):
                found = unpack(SHIM._encode(nested(levels, kind)))
                self.assertEqual((depth(found), innermost(found)), (levels, "innermost"))

    def test_deeper_values_are_cut(self):
        for levels in (*range(1001, 1100), 5000, 100_000):
            found = unpack(SHIM._encode(nested(levels, list)))
            self.assertEqual((depth(found), innermost(found)), (1000, "<too deep: list>"))

    def test_what_holds_itself_ends(self):
        mapping, row = {"n": 1}, [1]
        mapping["self"] = mapping
        row.append((row, {"row": row}))
        self.assertEqual(unpack(SHIM._encode(mapping)), {"n": 1, "self": "<recursion on dict>"})
        self.assertEqual(unpack(SHIM._encode(row)), [1, ["<recursion on list>", {"row": "<recursion on list>"}]])

    def test_what_is_there_twice_is_written_twice(self):
        shared = {"a": [1]}
        for encode in (SHIM._encode, SHIM._encode_slowly):
            self.assertEqual(unpack(encode([shared, [shared], shared])), [shared, [shared], shared])

    def test_objects_that_raise_become_text(self):
        for value in (Hostile(), HostileMap(a=1), {"a": [Hostile()]}, {"a": HostileMap(a=1)}):
            unpack(SHIM._encode(value))
        self.assertEqual(unpack(SHIM._encode({"a": [Hostile()], "b": 1})), {"a": ["<Hostile>"], "b": 1})

    def test_numbers_too_long_for_text_raise_nothing(self):
        unpack(SHIM._encode([10**6000]))

    def test_a_generator_is_not_consumed(self):
        generator = (number for number in range(3))
        self.assertIn("generator", unpack(SHIM._encode([generator]))[0])
        self.assertEqual(list(generator), [0, 1, 2])

    def test_functions_and_objects_become_text(self):
        for value in (print, object, object()):
            self.assertIsInstance(unpack(SHIM._encode(value)), str)

    def test_a_map_that_another_thread_changes_is_written(self):
        shared, ended = dict.fromkeys(range(200)), threading.Event()

        def change():
            while not ended.is_set():
                for number in range(1000, 1400):
                    shared[number] = None
                for number in range(1000, 1400):
                    del shared[number]

        thread = threading.Thread(target=change, daemon=True)
        thread.start()
        try:
            for _ in range(200):
                self.assertLessEqual(set(range(200)), set(unpack(SHIM._encode({"m": shared}))["m"]))
        finally:
            ended.set()
            thread.join()


class Sending(Case):
    def test_every_value_is_taken_by_the_daemon_in_a_return_a_load_and_an_event(self):
        daemon, shim = self.start(), self.shim("minion")
        for number, (given, expected) in enumerate(CASES):
            with self.subTest(number=number):
                shim.returner(a_return(**{"return": given}))
                self.assertEqual(daemon.last()["ret"]["return"], expected)
                shim.save_load("j", a_load(arg=given), [])
                self.assertEqual(daemon.last()["load"]["arg"], expected)
                shim.event_return([{"tag": "t", "data": {"x": given}}])
                self.assertEqual(daemon.last()["events"][0]["data"]["x"], expected)

    def test_deep_values_are_taken_whole_and_deeper_ones_cut(self):
        daemon, shim = self.start(), self.shim("minion")
        for levels in (600, 900, *range(990, 1030)):
            shim.returner(a_return(**{"return": nested(levels, dict)}))
            shim.save_load("j", a_load(arg=nested(levels, dict)), [])
            shim.event_return([{"tag": "t", "data": {"x": nested(levels, dict)}}])
            values = [
                daemon.last("return")["ret"]["return"],
                daemon.last("load")["load"]["arg"],
                daemon.last("events")["events"][0]["data"]["x"],
            ]
            for value in values:
                self.assertEqual(innermost(value), "innermost" if levels <= 990 else innermost(value))
                self.assertGreaterEqual(depth(value), min(levels, 990))

    def test_what_is_too_deep_or_odd_costs_nobody_the_record(self):
        daemon, shim = self.start(), self.shim("minion")
        loop = {}
        loop["loop"] = loop
        for value in (nested(5000, dict), loop, Hostile(), HostileMap(a=1)):
            shim.returner(a_return(**{"return": value}))
            shim.event_return([{"tag": "t", "data": {"x": value}}])
            self.assertEqual(daemon.last()["events"][0]["tag"], "t")
        self.assertEqual(len(daemon.requests), 8)

    def test_secrets_of_a_load_that_holds_itself_are_gone_too(self):
        daemon, shim = self.start(), self.shim()
        load = a_load()
        load["kwargs"]["kwargs"] = load["kwargs"]
        shim.save_load("j", load, ["m1"])
        self.assertNotIn(b"EVE-PASSWORD", daemon.bodies[0])

    def test_ids_with_surrogates_are_sent(self):
        daemon, shim = self.start(), self.shim("minion", config={"id": "m1"})
        shim.returner(a_return(id="m\udc80", jid="j\ud800"))
        self.assertEqual((daemon.last()["ret"]["id"], daemon.last()["ret"]["jid"]), ("m\udc80", "j\ud800"))
