-- mark: what a server is to a quorum: says it, and changes it.
--
-- KEYS[1] the marker      hash. What the members agree on: quorum, epoch, members, max_lease and
--                         keep in milliseconds. The server's own: node (the run_id that it is
--                         recorded by), run_id, since (from when it votes, in microseconds of
--                         its clock), admitted (the epoch in which it became a node, where
--                         members chose it: in that one it may have forgotten a promise).
--                         Whose clock was ahead when that time was set: clock, an address.
--                         The choice of the next members: ballot, accepted, next. The members that
--                         clients miss: missing, "run_id@since@client[,client]" for each, with
--                         since in microseconds of this server's clock
-- ARGV[1] the run_id of the server, as the client knows it; "" for any
-- ARGV[2] "look"; or "promise" to accept no smaller ballot, "accept" a choice of the next members,
--         "record" members, "note" which members a client misses, "shorten" the time without votes
-- ARGV[3] the quorum; for a choice the one that the server is to be in, "" for none yet
-- ARGV[4] the epoch of those members; for a choice the one that the server is to be in, "0" for
--         none yet
-- ARGV[5] promise, accept: the ballot. record: the members. note: the missing ones, by run_id
-- ARGV[6] accept: the choice. record: the longest lease. note: the client
-- ARGV[7] record: for how long a counter is kept
-- ARGV[8] record: for how long a server that becomes a node by it does not vote yet, in
--         milliseconds; "" if none may. shorten: for how long it does not vote at most
-- ARGV[9] record, shorten: from when that counts at the earliest, in microseconds
-- ARGV[10] record: the marker that a server which becomes a node has until then, as
--          "epoch since quorum"; "" for none. shorten: the marker
-- ARGV[11] record: "1" if a server that becomes a node takes part in choices from the next epoch on
-- ARGV[12] record, shorten: whose clock ARGV[9] is, if it was ahead
--
-- Returns {run_id, time in microseconds, {quorum, epoch, members, max_lease, keep, node, run_id,
-- ballot, accepted, next, since, admitted, clock, missing}, done} as they are now; done is 1 if the
-- server did by this call what it was asked. A server of another run_id changes nothing.
--
-- Atomic because of two clients that find no marker only one may write it, a choice must not slip
-- in between a promise and what it is compared with, and the marker must be the server's own.

local server = string.match(redis.call('INFO', 'server'), 'run_id:(%x+)')
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]

local function marker()
  return redis.call('HMGET', KEYS[1], 'quorum', 'epoch', 'members', 'max_lease', 'keep', 'node',
    'run_id', 'ballot', 'accepted', 'next', 'since', 'admitted', 'clock', 'missing')
end

local function state(done)
  return {server, now, marker(), done}
end

-- Whether the server's data were another server's before, or of a dump: see propose.lua.
local function has_history()
  local second = string.match(redis.call('INFO', 'replication'), 'master_replid2:(%x+)')
  return second and string.find(second, '[^0]')
end

-- The missing members with those that this client misses, and without the others.
local function noted(before, missed, client)
  local known, list = {}, {}
  for id, since, clients in string.gmatch(before, '([^ @]+)@(%d+)@([^ ]+)') do
    known[id] = {since, clients}
  end
  for id in string.gmatch(missed, '[^ ]+') do
    local since, clients = unpack(known[id] or {})
    if not since or tonumber(since) > now then
      since, clients = string.format('%.0f', now), client
    elseif not string.find(clients, ',', 1, true) and clients ~= client then
      -- Two are enough.
      clients = clients .. ',' .. client
    end
    list[#list + 1] = id .. '@' .. since .. '@' .. clients
  end
  return table.concat(list, ' ')
end

local present = marker()
-- A restart from an append-only file has no history: this is one from a dump, or a promoted
-- replica. What it forgot is unknown, and the member whose data it has may be alive.
local lost = present[7] and present[7] ~= server and has_history()
if lost then
  present = {}
end
if ARGV[2] == 'look' or ARGV[1] ~= server then
  return {server, now, present, 0}
end
if lost then
  redis.call('DEL', KEYS[1])
end
local quorum, epoch, ballot = present[1], present[2], present[8]
local since, admitted = present[11], present[12]
local version = quorum and (epoch .. ' ' .. (since or '') .. ' ' .. quorum) or ''
local done = 0
if ARGV[2] == 'note' then
  if quorum == ARGV[3] and epoch == ARGV[4] then
    redis.call('HSET', KEYS[1], 'missing', noted(present[14] or '', ARGV[5], ARGV[6]))
    done = 1
  end
  return state(done)
end
if ARGV[2] == 'record' then
  -- A request that arrives late finds another marker than the client saw, and replaces nothing.
  if ARGV[8] ~= '' and version == ARGV[10] then
    local votes_from = math.max(now, tonumber(ARGV[9])) + ARGV[8] * 1000
    local admitted_in = ARGV[11] == '1' and ARGV[4] or ''
    redis.call('HSET', KEYS[1], 'quorum', ARGV[3], 'epoch', ARGV[4], 'members', ARGV[5],
      'max_lease', ARGV[6], 'keep', ARGV[7], 'node', server, 'run_id', server,
      'since', votes_from, 'admitted', admitted_in, 'clock', ARGV[12] or '',
      'ballot', '', 'accepted', '', 'next', '', 'missing', '')
    done = 1
  elseif quorum == ARGV[3] and tonumber(ARGV[4]) > tonumber(epoch) then
    redis.call('HSET', KEYS[1], 'epoch', ARGV[4], 'members', ARGV[5],
      'ballot', '', 'accepted', '', 'next', '')
    done = 1
  end
  return state(done)
end
if ARGV[2] == 'shorten' then
  local votes_from = math.max(now, tonumber(ARGV[9])) + ARGV[8] * 1000
  if version == ARGV[10] and votes_from < tonumber(since) then
    redis.call('HSET', KEYS[1], 'since', votes_from, 'clock', ARGV[12])
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
