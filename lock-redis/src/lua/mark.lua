-- mark: makes a server one of a quorum's nodes, unless it is one already.
--
-- KEYS[1] the marker      hash: run_id, max_lease, since
-- ARGV[1] the run_id of the server, as the client knows it
-- ARGV[2] the longest lease, in milliseconds; "" only looks
-- ARGV[3] for how long it does not vote yet, in milliseconds
--
-- Returns the longest lease that it has as a node now, in milliseconds; 0 if it is none, and this only looked; -1 if this
-- is another server than the client knows.
--
-- Atomic because of two clients that find no marker only one may write it, and it must be the server's that it is on.

local server = string.match(redis.call('INFO', 'server'), 'run_id:(%x+)')
if server ~= ARGV[1] then
  return -1
end
local there = redis.call('HGET', KEYS[1], 'max_lease')
if there then
  return tonumber(there)
end
if ARGV[2] == '' then
  return 0
end
local time = redis.call('TIME')
local since = time[1] * 1000000 + time[2] + ARGV[3] * 1000
redis.call('HSET', KEYS[1], 'run_id', server, 'max_lease', ARGV[2], 'since', since)
return tonumber(ARGV[2])
