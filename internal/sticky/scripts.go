package sticky

import "github.com/redis/go-redis/v9"

// The scripts that make a read and the write that depends on it one step.
// Numbers are compared as Lua doubles (exact below 2^53) but returned as the
// strings they are stored as: Lua prints large numbers rounded.

// scriptPut is the put rule. KEYS: the shard and, but on a cluster, the epoch.
// ARGV: field, pin, expected pin, "" or "*" for any, epoch or "", seconds to live or "0".
// It answers {1 written, 0 kept, -1 other epoch; the pin stored}.
var scriptPut = redis.NewScript(`
if ARGV[4] ~= '' and redis.call('GET', KEYS[2]) ~= ARGV[4] then return {-1, ''} end
local cur = redis.call('HGET', KEYS[1], ARGV[1])
if cur and #cur == 8 and ARGV[3] ~= '*' then
  local have = string.byte(cur, 2) * 256 + string.byte(cur, 3)
  local new = string.byte(ARGV[2], 2) * 256 + string.byte(ARGV[2], 3)
  if not (have < new or (ARGV[3] ~= '' and cur == ARGV[3])) then return {0, cur} end
end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
if ARGV[5] ~= '0' then redis.call('EXPIRE', KEYS[1], ARGV[5]) end
return {1, ARGV[2]}
`)

// scriptPublish sets the snapshot if greater. KEYS: snapshot, log. ARGV:
// revision, document, encoding, hash. It answers {1|0, revision, hash stored}.
// A log that is ahead of a lost snapshot refuses the entry: followers then
// find the revision at their next look.
var scriptPublish = redis.NewScript(`
local have = redis.call('HMGET', KEYS[1], 'ver', 'hash')
if have[1] and tonumber(ARGV[1]) <= (tonumber(have[1]) or 0) then return {0, have[1], have[2] or ''} end
redis.call('HSET', KEYS[1], 'ver', ARGV[1], 'doc', ARGV[2], 'enc', ARGV[3], 'hash', ARGV[4])
redis.pcall('XADD', KEYS[2], 'MAXLEN', '~', '10000', ARGV[1] .. '-0', 'hash', ARGV[4])
return {1, ARGV[1], ARGV[4]}
`)

// scriptKills adds kill entries first-come and logs a change. KEYS: set, log.
// ARGV: field, entry, field, entry, …
var scriptKills = redis.NewScript(`
local n = 0
for i = 1, #ARGV, 2 do n = n + redis.call('HSETNX', KEYS[1], ARGV[i], ARGV[i + 1]) end
if n > 0 then redis.call('XADD', KEYS[2], 'MAXLEN', '~', '1000', '*', 'added', n) end
return n
`)

// scriptLease takes a free leadership. KEYS: leader, fence. ARGV: id, ms to
// live, floor of the fence. It answers the fence, "" when another has it. The
// leader's value is "id fence".
var scriptLease = redis.NewScript(`
if redis.call('EXISTS', KEYS[1]) == 1 then return '' end
local have = redis.call('GET', KEYS[2])
if not have or (tonumber(have) or 0) < tonumber(ARGV[3]) then redis.call('SET', KEYS[2], ARGV[3]) end
redis.call('INCR', KEYS[2])
local fence = redis.call('GET', KEYS[2])
redis.call('SET', KEYS[1], ARGV[1] .. ' ' .. fence, 'PX', ARGV[2])
return fence
`)

// scriptRenew keeps a key that still has the caller's value alive. KEYS: key.
// ARGV: value, ms to live; 0 deletes it.
var scriptRenew = redis.NewScript(`
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
if ARGV[2] == '0' then return redis.call('DEL', KEYS[1]) end
return redis.call('PEXPIRE', KEYS[1], ARGV[2])
`)

// scriptFilled ends a refill that nothing interrupted. KEYS: lock, epoch.
// ARGV: the lock's value, the new epoch.
var scriptFilled = redis.NewScript(`
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[2], ARGV[2])
return redis.call('DEL', KEYS[1])
`)

// scriptCheckpoint stores a leader's state unless a later leader has. KEYS: the
// state. ARGV: fence, body, encoding, seconds to live. It answers 1 or 0.
var scriptCheckpoint = redis.NewScript(`
local have = redis.call('HGET', KEYS[1], 'fence')
if have and tonumber(ARGV[1]) < (tonumber(have) or 0) then return 0 end
redis.call('HSET', KEYS[1], 'fence', ARGV[1], 'body', ARGV[2], 'enc', ARGV[3])
redis.call('EXPIRE', KEYS[1], ARGV[4])
return 1
`)
