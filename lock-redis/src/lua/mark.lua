-- mark: what a server is to a quorum: says it, and changes it.
--
-- KEYS[1] the marker      hash. What the members agree on: quorum, epoch, members, max_lease and
--                         keep in milliseconds. The server's own: node (the run_id that it is
--                         recorded by), run_id, since (from when it votes, in microseconds of
--                         its clock), admitted (the epoch in which it became a node, where
--                         members chose it: in that one it may have forgotten a promise).
--                         The choice of the next members: ballot, accepted, next
-- ARGV[1] the run_id of the server, as the client knows it; "" for any
-- ARGV[2] "look"; or "promise" to accept no smaller ballot, "accept" a choice of the next members,
--         "record" members
-- ARGV[3] the quorum; for a choice the one that the server is to be in, "" for none yet
-- ARGV[4] the epoch of those members; for a choice the one that the server is to be in, "0" for
--         none yet
-- ARGV[5] promise, accept: the ballot. record: the members
-- ARGV[6] accept: the choice. record: the longest lease
-- ARGV[7] record: for how long a counter is kept
-- ARGV[8] record: for how long a server that becomes a node by it does not vote yet, in
--         milliseconds; "" if none may
-- ARGV[9] record: from when that counts at the earliest, in microseconds
-- ARGV[10] record: the marker that a server which becomes a node has until then, as
--          "epoch since quorum"; "" for none
-- ARGV[11] record: "1" if a server that becomes a node takes part in choices from the next epoch on
--
-- Returns {run_id, time in microseconds, {quorum, epoch, members, max_lease, keep, node, run_id,
-- ballot, accepted, next, since, admitted}, done} as they are now; done is 1 if the server did by
-- this call what it was asked. A server of another run_id changes nothing.
--
-- Atomic because of two clients that find no marker only one may write it, a choice must not slip
-- in between a promise and what it is compared with, and the marker must be the server's own.

local server = string.match(redis.call('INFO', 'server'), 'run_id:(%x+)')
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]

local function state(done)
  return {
    server,
    now,
    redis.call('HMGET', KEYS[1], 'quorum', 'epoch', 'members', 'max_lease', 'keep', 'node',
      'run_id', 'ballot', 'accepted', 'next', 'since', 'admitted'),
    done,
  }
end

if ARGV[2] == 'look' or ARGV[1] ~= server then
  return state(0)
end
local quorum, epoch, ballot, since, admitted = unpack(
  redis.call('HMGET', KEYS[1], 'quorum', 'epoch', 'ballot', 'since', 'admitted'))
local done = 0
if ARGV[2] == 'record' then
  local present = quorum and (epoch .. ' ' .. (since or '') .. ' ' .. quorum) or ''
  -- A request that arrives late finds another marker than the client saw, and replaces nothing.
  if ARGV[8] ~= '' and present == ARGV[10] then
    local votes_from = math.max(now, tonumber(ARGV[9])) + ARGV[8] * 1000
    local admitted_in = ARGV[11] == '1' and ARGV[4] or ''
    redis.call('HSET', KEYS[1], 'quorum', ARGV[3], 'epoch', ARGV[4], 'members', ARGV[5],
      'max_lease', ARGV[6], 'keep', ARGV[7], 'node', server, 'run_id', server,
      'since', votes_from, 'admitted', admitted_in, 'ballot', '', 'accepted', '', 'next', '')
    done = 1
  elseif quorum == ARGV[3] and tonumber(ARGV[4]) > tonumber(epoch) then
    redis.call('HSET', KEYS[1], 'epoch', ARGV[4], 'members', ARGV[5],
      'ballot', '', 'accepted', '', 'next', '')
    done = 1
  end
  return state(done)
end
if (quorum or '') == ARGV[3] and (epoch or '0') == ARGV[4] and admitted ~= ARGV[4] then
  local promised, asked = tonumber(ballot or '') or 0, tonumber(ARGV[5])
  if ARGV[2] == 'promise' and asked > promised then
    redis.call('HSET', KEYS[1], 'ballot', ARGV[5])
    done = 1
  elseif ARGV[2] == 'accept' and asked >= promised then
    redis.call('HSET', KEYS[1], 'ballot', ARGV[5], 'accepted', ARGV[5], 'next', ARGV[6])
    done = 1
  end
end
return state(done)
