//! What the server does in one step, as scripts it runs by their digest.
//!
//! Each looks at every key whose type could be wrong before it writes, so that a refused record has left nothing. A time to
//! live is only ever made longer, and none stays none: writers with other keep times may share the server. Keys are
//! Salt's: `ret:<jid>`, `load:<jid>`, `<minion>:<fun>`, `minions`. Ours are the three of this file's constants and
//! `returnerd:imported`.

/// Sorted set: jids of the jobs that have a load, all with the score 0, so that it is in the order of jids.
pub(crate) const JIDS: &str = "returnerd:jids";
/// Sorted set: each job by the time at which its last record arrived, in milliseconds since 1970.
pub(crate) const LAST: &str = "returnerd:last";
/// Sorted set: each minion by the time at which it may be forgotten, in milliseconds since 1970; of one that is kept for
/// ever, the time of its last return with a minus sign.
pub(crate) const MINIONS: &str = "returnerd:minions";
/// Text: how far the search for jobs that Salt's own returner wrote has come; gone when it is time for another.
pub(crate) const IMPORTED: &str = "returnerd:imported";

/// The scripts, by their place in [`ALL`].
#[derive(Debug, Clone, Copy)]
pub(crate) enum Script {
    Return,
    Load,
    Adopt,
    Trim,
    Purge,
}

/// Their texts, in the order of [`Script`].
pub(crate) const ALL: [&str; 5] = [RETURN, LOAD, ADOPT, TRIM, PURGE];

/// Stores a return. Keys: the job's hash, the pointer, `minions`, the load, LAST, MINIONS. Arguments: jid, minion,
/// document, time to live in milliseconds, arrival, now.
const RETURN: &str = r"
local ttl, now = tonumber(ARGV[4]), tonumber(ARGV[6])
local function extend(key, left)
  if ttl == 0 or left == -1 then redis.call('PERSIST', key) else redis.call('PEXPIRE', key, math.max(left, ttl)) end
end
local job = redis.call('ZSCORE', KEYS[5], ARGV[1])
local over = tonumber(redis.call('ZSCORE', KEYS[6], ARGV[2]) or 0)
redis.call('SISMEMBER', KEYS[3], ARGV[2])
local last = redis.call('GET', KEYS[2])
local point = not last or last <= ARGV[1] or redis.call('HEXISTS', 'ret:' .. last, ARGV[2]) == 0
local hash, pointer, load = redis.call('PTTL', KEYS[1]), redis.call('PTTL', KEYS[2]), redis.call('PTTL', KEYS[4])
local new = redis.call('HSETNX', KEYS[1], ARGV[2], ARGV[3])
extend(KEYS[1], hash)
if load ~= -2 then extend(KEYS[4], load) end
if point then
  redis.call('SET', KEYS[2], ARGV[1])
  extend(KEYS[2], pointer)
end
redis.call('SADD', KEYS[3], ARGV[2])
if not job or tonumber(job) < tonumber(ARGV[5]) then redis.call('ZADD', KEYS[5], ARGV[5], ARGV[1]) end
if ttl == 0 or over < 0 then over = -now else over = math.max(over, now + ttl) end
redis.call('ZADD', KEYS[6], string.format('%.0f', over), ARGV[2])
return new
";

/// Stores a load if what is stored is what was expected; answers 1, or else what is stored. Keys: the load, JIDS, LAST.
/// Arguments: jid, `1` if a load is expected, that load, the new load, time to live in milliseconds, arrival.
const LOAD: &str = r"
local ttl = tonumber(ARGV[5])
local job = redis.call('ZSCORE', KEYS[3], ARGV[1])
redis.call('ZSCORE', KEYS[2], ARGV[1])
local there = redis.call('GET', KEYS[1])
local left = redis.call('PTTL', KEYS[1])
local expected = false
if ARGV[2] == '1' then expected = ARGV[3] end
local same = there == expected
if same then redis.call('SET', KEYS[1], ARGV[4]) end
if same or there then
  if ttl == 0 or left == -1 then
    redis.call('PERSIST', KEYS[1])
  else
    redis.call('PEXPIRE', KEYS[1], math.max(left, ttl))
  end
  redis.call('ZADD', KEYS[2], 0, ARGV[1])
  if not job or tonumber(job) < tonumber(ARGV[6]) then redis.call('ZADD', KEYS[3], ARGV[6], ARGV[1]) end
end
if same then return 1 end
return there
";

/// Takes jobs and minions that Salt's own returner wrote into our sets. When a job's last return came is seen from the time
/// it has left, if that fits. Keys: JIDS, LAST, MINIONS, `minions`. Arguments: now, the time to live in milliseconds, `1` to
/// look at the minions, then the jid and its time for each job.
const ADOPT: &str = r"
local now, keep = tonumber(ARGV[1]), tonumber(ARGV[2])
for at = 4, #ARGV, 2 do
  local jid, time, found = ARGV[at], tonumber(ARGV[at + 1]), false
  local known = redis.call('ZSCORE', KEYS[1], jid) and redis.call('ZSCORE', KEYS[2], jid)
  for _, key in ipairs(known and {} or {'load:' .. jid, 'ret:' .. jid}) do
    local left = redis.call('PTTL', key)
    if left ~= -2 then
      found = true
      local since = now + left - keep
      if left > 0 and keep > 0 and since > time and since <= now then time = since end
    end
  end
  if found then
    if redis.call('EXISTS', 'load:' .. jid) == 1 then redis.call('ZADD', KEYS[1], 0, jid) end
    redis.call('ZADD', KEYS[2], 'NX', string.format('%.0f', time), jid)
  end
end
if ARGV[3] == '1' then
  local over = keep == 0 and -now or now + keep
  for _, id in ipairs(redis.call('SMEMBERS', KEYS[4])) do
    redis.call('ZADD', KEYS[3], 'NX', string.format('%.0f', over), id)
  end
end
return 1
";

/// Forgets jobs and minions whose time is over. Keys: LAST, JIDS, MINIONS, `minions`. Arguments: the time before which jobs
/// may have gone, how many jobs to pass over, how many to look at, now. Answers how many jobs it saw and how many are still there.
const TRIM: &str = r"
local jobs = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', '(' .. ARGV[1], 'LIMIT', ARGV[2], ARGV[3])
local kept = 0
for _, jid in ipairs(jobs) do
  if redis.call('EXISTS', 'ret:' .. jid, 'load:' .. jid) == 0 then
    redis.call('ZREM', KEYS[1], jid)
    redis.call('ZREM', KEYS[2], jid)
  else
    kept = kept + 1
  end
end
for _, id in ipairs(redis.call('ZRANGEBYSCORE', KEYS[3], '(0', '(' .. ARGV[4], 'LIMIT', 0, ARGV[3])) do
  redis.call('SREM', KEYS[4], id)
  redis.call('ZREM', KEYS[3], id)
end
return {#jobs, kept}
";

/// Removes old jobs, oldest first. Keys: LAST, JIDS, MINIONS, `minions`. Arguments: the cutoff, how many records may go, `1`
/// if the pointers to them must go too, as nothing ends them. Answers how many records went and whether there may be more.
const PURGE: &str = r#"
local removed, budget, pointers = 0, tonumber(ARGV[2]), ARGV[3] == '1'
local function unpoint(key, jid)
  if redis.pcall('GET', key) == jid then redis.call('DEL', key) end
end
local function forget(ret, jid, id)
  if not pointers then return end
  local document = redis.call('HGET', ret, id) or ''
  for fun in string.gmatch(document, '"fun": "([^"]*)"') do unpoint(id .. ':' .. fun, jid) end
  for funs in string.gmatch(document, '"fun": %[([^%]]*)%]') do
    local names = string.gsub(string.gsub(funs, '"', ''), ', ', ',')
    unpoint(id .. ':' .. names, jid)
  end
end
for _ = 1, budget do
  local jid = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', '(' .. ARGV[1], 'LIMIT', 0, 1)[1]
  if not jid then
    local gone = redis.call('ZRANGEBYSCORE', KEYS[3], '(-' .. ARGV[1], '(0', 'LIMIT', 0, 1000)
    for _, id in ipairs(gone) do
      redis.call('SREM', KEYS[4], id)
      redis.call('ZREM', KEYS[3], id)
    end
    return {removed, #gone == 1000 and 1 or 0}
  end
  local ret = 'ret:' .. jid
  local ids = redis.pcall('HKEYS', ret)
  if ids.err then ids = {} end
  if #ids > budget - removed then
    for at = 1, budget - removed do
      forget(ret, jid, ids[at])
      redis.call('HDEL', ret, ids[at])
    end
    return {budget, 1}
  end
  for _, id in ipairs(ids) do forget(ret, jid, id) end
  if #ids > 0 then redis.call('UNLINK', ret) end
  removed = removed + #ids
  if removed < budget or #ids == 0 then
    removed = removed + redis.call('UNLINK', 'load:' .. jid)
    redis.call('ZREM', KEYS[1], jid)
    redis.call('ZREM', KEYS[2], jid)
  end
  if removed >= budget then break end
end
return {removed, 1}
"#;
