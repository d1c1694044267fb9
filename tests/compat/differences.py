"""
The one table of where our plugins differ from Salt's own returners, and why that is right.

A row holds for returners, cases and parts by shell patterns, and, if it has `when`, only for the values it accepts: Salt's, ours,
and what Salt's returner raised. A part is `store/<table>/<column>` for what is stored, or `<who> of <whose>/<function>` for what a
reading function answers: `salt of ours` is Salt's reader on what our plugin stored. A number stands for a report of users.
"""


class Difference:
    def __init__(self, returners, cases, parts, reason, when=None, everywhere=False):
        self.returners, self.cases, self.parts, self.reason, self.when = returners, cases, parts, reason, when
        # What is so in every case says nothing about the one case, and does not count for it.
        self.everywhere = everywhere


ABSENT = "(absent)"


def nothing(value):
    return value in (ABSENT, {}, None, []) or value is False


def lost(salts, ours, raised):
    """Salt's returner has nothing, whether it raised or only logged; ours has the record."""
    return nothing(salts) and not nothing(ours)


def only_salts(salts, ours, raised):
    return ours == ABSENT and salts != ABSENT


def without(*keys):
    """Ours is Salt's but for these keys of the document, at its top or one level down."""

    def strip(value, depth=2):
        if isinstance(value, dict) and depth:
            return {key: strip(inner, depth - 1) for key, inner in value.items() if key not in keys}
        return value

    return lambda salts, ours, raised: strip(salts) == strip(ours)


def outcome(salts, ours, raised):
    """The column `success`: Salt's is what the record says, ours what happened, or nothing where nobody knows."""
    return str(salts).lower() in ("0", "1", "true", "false", "none", "") and str(ours).lower() in ("0", "false", "", "none")


def includes(salts, ours, raised):
    """Ours holds all that Salt's does, and more."""
    if isinstance(salts, dict) and isinstance(ours, dict):
        return all(key in ours and includes(inner, ours[key], raised) for key, inner in salts.items())
    return salts == ours or nothing(salts)

DIFFERENCES = [
    # What Salt's returner loses.
    Difference("*", "value_four_byte_text a_load_with_wide_characters an_event_with_wide_characters", "*",
               "the documented tables of MySQL refuse characters of four bytes (29)", lost),
    Difference("*", "value_binary value_utf8_bytes value_a_bytearray value_keys_of_bytes a_signed_return", "*",
               "bytes cannot be encoded by Salt's returner; ours keeps them, as base64 where they are no text", lost),
    Difference("*", "value_a_set value_a_date value_a_date_time* value_a_tuple* value_a_tuple_key", "*",
               "a set, a date or a key that is a list stops Salt's returner (30)", lost),
    Difference("*", "*_with_values_that_json_lacks", "*",
               "a set, a date or bytes in a load or event stop Salt's returner (30)", lost),
    Difference("*", "several_functions* a_function_twice_in_one_job", "*",
               "the SQL returners of Salt cannot store a job of several functions (23)", lost),
    Difference("*", "module_run", "*", "`module.run` gives `ret` in place of `return`, which Salt's returner does not expect", lost),
    Difference("*", "a_long_function_name an_event_with_a_long_tag a_long_minion_id a_unique_job_id", "*",
               "Salt's documented column is too short; ours has room, or keeps the whole in the document", lost),
    Difference("*", "a_good_event_beside_a_bad_one", "*",
               "one bad event makes Salt's returner lose the others of its batch (4)", lost),
    # Values, by the rules at the top of wit/.
    Difference("*", "value_beyond_64_bits", "*",
               "an integer of more than 64 bits becomes its digits, as it does on Salt's own bus",
               lambda salts, ours, raised: "'1180591620717411303424'" in repr(ours)),
    Difference("*", "value_nul an_event_with_a_nul", "*",
               "NUL becomes the six characters of its escape everywhere, since PostgreSQL stores none",
               lambda salts, ours, raised: "a\\\\u0000b" in repr(ours)),
    Difference("pgjsonb", "value_nul value_not_a_number value_infinity an_event_with_a_nul", "*",
               "jsonb refuses NUL and `NaN`, and Salt's returner drops the record (35)", lost),
    Difference("*", "value_not_a_number value_infinity", "*",
               "`NaN` and `Infinity` bare are no JSON; ours are texts (35)",
               lambda salts, ours, raised: "'NaN'" in repr(ours) or "'Infinity'" in repr(ours)),
    Difference("*", "value_keys_that_collide", "*",
               "a number and a text that look alike as keys: Salt loses one, ours names the type",
               lambda salts, ours, raised: "1 (int)" in repr(ours)),
    # Loads.
    Difference("*", "a_return_without_a_load salt_call a_schedule the_placeholder_job_id a_return_whose_load_is_unknown", "*",
               "a return without a load gets one made from it, which a published one replaces, so that the job is listed (17)",
               lambda salts, ours, raised: nothing(salts) or "_return" in repr(salts) or "return" in repr(salts)
               or "unknown-target" in repr(salts)),
    Difference("*", "*", "*/get_load */get_jids store/loads/load",
               "the expected minions, and the end of the job, are kept with the load (21, 20)", without("Minions", "EndTime")),
    Difference("*", "a_load_with_secrets", "*",
               "the master's key, tokens and passwords are removed from loads before they leave Salt (9844)",
               without("key", "token", "eauth", "username", "password")),
    Difference("*", "options_of_the_call", "*", "`ret_kwargs` overrides options, perhaps a password, and is not stored",
               without("ret_kwargs", "return")),
    # Returns.
    Difference("*", "a_failed_state_that_says_success a_runner no_outcome salt_ssh", "store/returns/success",
               "ours tells the real outcome: a state that failed is no success, an unknown outcome is neither (22)", outcome),
    Difference("*", "a_resource", "*", "a resource of Salt 3008 answers under its own id, which Salt 3006 does not know",
               lambda salts, ours, raised: nothing(salts) or nothing(ours) or "'ssh/web1': {" in repr(ours)),
    Difference("*", "the_same_return_twice another_return_of_the_same_job", "store/returns/*",
               "Salt stores a return as often as it is sent (16)", only_salts),
    Difference("*", "another_return_of_the_same_job", "*",
               "of two returns of one minion for one job the first stands, as in Salt's own `local_cache`",
               lambda salts, ours, raised: "'second'" in repr(salts) and "'first'" in repr(ours)),
    # What only one of Salt's returners does.
    Difference("sqlite3", "*", "store/returns/extra",
               "the rest of Salt's record, which its returner drops, stands in a column of its own", lost,
               everywhere=True),
    Difference("sqlite3", "*", "store/returns/fun_args",
               "arguments are JSON, not the text that Python prints (31)",
               lambda salts, ours, raised: ours not in (None, ABSENT)),
    Difference("sqlite3 pgjsonb postgres", "the_placeholder_job_id", "store/returns/*",
               "Salt's returner keeps the placeholder as the job id (24)", lambda salts, ours, raised: ABSENT in (salts, ours)),
    Difference("sqlite3", "*", "*/get_jid",
               "Salt's reader shows the first minion only, and of its record the value only", includes),
    Difference("sqlite3", "*", "*/get_fun", "Salt's reader fails as soon as there is a row (25)",
               lambda salts, ours, raised: nothing(salts) or salts == "ValueError"),
    Difference("sqlite3", "*", "*",
               "after a load that is there already Salt's returner leaves the file locked and loses what follows (14)",
               lambda salts, ours, raised: "OperationalError" in repr(raised) and lost(salts, ours, raised)),
    Difference("pgjsonb postgres", "*", "*/get_fun", "Salt's reader quotes names as MySQL does, which PostgreSQL refuses (25)",
               lambda salts, ours, raised: salts in ("SyntaxError", "ProgrammingError"), everywhere=True),
    Difference("pgjsonb redis local_cache", "a_published_load_and_the_returns_as_loads", "*/get_load */get_jids store/loads/load",
               "Salt's returner replaces the published load by the last return (15)",
               lambda salts, ours, raised: "_return" in repr(salts) or "unknown-target" in repr(salts)),
    Difference("pgjsonb postgres", "a_function_twice_in_one_job", "store/returns/fun store/returns/success",
               "Salt's returner stores a list as PostgreSQL's text of an array (23)",
               lambda salts, ours, raised: str(salts).startswith("{")),
    Difference("redis", "several_functions* a_function_twice_in_one_job", "store/last/*",
               "the key of the last run has the functions' names joined by commas, not the text that Python prints (23)",
               lambda salts, ours, raised: ABSENT in (salts, ours)),
    Difference("redis", "the_placeholder_job_id", "*", "Salt's returner points to the placeholder as the last job (24)",
               lambda salts, ours, raised: salts in ("req", "expires") or nothing(salts)),
    Difference("redis", "module_run", "*", "`module.run` gives `ret` in place of `return`; ours stores it as the value",
               lambda salts, ours, raised: "'ret': {" in repr(salts) or nothing(salts)),
    Difference("local_cache", "*", "store/returns/*",
               "the rest of Salt's record, which its job cache drops, stands behind the three keys that it keeps",
               lambda salts, ours, raised: salts == ABSENT, everywhere=True),
    Difference("local_cache", "*", "*/get_jid", "the whole record is kept, not three keys of it", includes, everywhere=True),
    Difference("local_cache", "*", "*/get_fun */get_minions", "Salt's job cache has no such function",
               lambda salts, ours, raised: salts == ABSENT, everywhere=True),
    Difference("local_cache", "value_*bytes* value_a_date* value_keys_* value_a_boolean_key value_binary value_a_bytearray "
               "value_a_tuple_key a_load_with_values_that_json_lacks", "*",
               "what JSON lacks is stored, or shown, as text by the rules of the contract, the same in every store; of bytes "
               "Salt's master too sees the text, and Salt's reader tries a key that is a list for ever",
               lambda salts, ours, raised: not nothing(ours)),
    Difference("local_cache", "a_return_without_a_load salt_call a_schedule a_return_whose_load_is_unknown", "*",
               "Salt stores the return in a directory without a job id, which its cleaner removes at once (17)",
               lambda salts, ours, raised: ABSENT in (salts, ours) or nothing(salts) or "_return" in repr(salts)
               or salts == "CommandExecutionError"),
    Difference("local_cache", "module_run", "*/get_jid", "`module.run` gives `ret` in place of `return`; Salt loses the value",
               lambda salts, ours, raised: "'test.ping': True" in repr(ours)),
    Difference("local_cache", "*", "store/files/.minions*",
               "the expected minions are sorted, and those of a syndic stand with the others; readers unite the files",
               lambda salts, ours, raised: ours == ABSENT or set(salts) <= set(ours)),
]
