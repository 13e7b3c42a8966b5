-- propose: takes the lock for an owner on one of a quorum's nodes, if it is free and the token
-- proposed is a new one.
--
-- KEYS[1] the lock
-- KEYS[2] the counter     string, the largest token granted or set aside
-- KEYS[3] the tombstone   present while this owner is closed
-- KEYS[4] the marker      hash: see mark.lua
-- ARGV[1] lease in milliseconds
-- ARGV[2] owner
-- ARGV[3] tokens: "0" none, "1" the counter expires, "2" the counter stays
-- ARGV[4] how long, in milliseconds, a counter is kept after the time it stands for
-- ARGV[5] the first token proposed
-- ARGV[6] the last one, behind those to set aside
-- ARGV[7] the longest lease in milliseconds, as the client knows it; "" for a node that needs no
-- marker
-- ARGV[8] the run_id of the server, as the client knows it
-- ARGV[9] "1" if the server must be asked whether that is so: before the first vote on a connection
-- ARGV[10] "1" if the operator declares that no write is ever lost
-- ARGV[11] the quorum, ARGV[12] the epoch of its members, and ARGV[13] the node, as the client
-- knows them
-- ARGV[14] "1" if a majority has granted the lock at this token, and this node is asked to vote for
-- it, too: then a larger token here is no reason to refuse. "0" for an attempt
--
-- Returns {1} granted; {0, pttl, told} another owner has it (-1: for ever), or this one is closed
-- (-2), and its release will be told of (1) or not (0); {2, token} free, and this is the token to
-- be outbid; {3, milliseconds} this node does not vote for so long (-1: it has no marker); {4} its
-- marker says something else than the client knows; {5} this is another server than the client
-- knows; {6, microseconds} the token is so far ahead of this node's clock, which is too far.
--
-- Atomic because two owners must never both find the lock free, a vote must see the marker that it
-- is given under, and a late copy of a request must see the tombstone before it takes the lock.

-- Lua counts in doubles: above this a token would not be exact.
local LARGEST = 9007199254740991

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
-- What an absent counter stands for: it expired, or was lost, and then nothing beyond that was ever
-- granted here.
local floor = now - ARGV[4] * 1000

if ARGV[7] ~= '' then
  local marker = redis.call('HMGET', KEYS[4], 'run_id', 'max_lease', 'since', 'keep',
    'quorum', 'epoch', 'node')
  local server = ARGV[8]
  if ARGV[9] == '1' or marker[1] ~= ARGV[8] then
    server = string.match(redis.call('INFO', 'server'), 'run_id:(%x+)')
    if server ~= ARGV[8] then
      return {5}
    end
  end
  if not marker[1] then
    return {3, -1}
  end
  if marker[2] ~= ARGV[7] or marker[4] ~= ARGV[4]
    or marker[5] ~= ARGV[11] or marker[6] ~= ARGV[12] or marker[7] ~= ARGV[13]
  then
    return {4}
  end
  if marker[1] ~= server then
    local second = string.match(redis.call('INFO', 'replication'), 'master_replid2:(%x+)')
    if second and string.find(second, '[^0]') then
      -- A restart from an append-only file has no history: this is one from a dump, or a promoted
      -- replica, and counts as emptied.
      return {3, -1}
    end
    -- It was started again since, perhaps from an old snapshot.
    if ARGV[10] == '1' then
      redis.call('HSET', KEYS[4], 'run_id', server)
    else
      marker[3] = now + marker[2] * 1000
      redis.call('HSET', KEYS[4], 'run_id', server, 'since', marker[3])
    end
  end
  local since = tonumber(marker[3])
  if now < since then
    return {3, math.ceil((since - now) / 1000)}
  end
  if since > floor then
    floor = since
  end
  -- What was granted before a restart must be behind the time from which it votes again.
  local ahead = tonumber(ARGV[6]) - now
  if ARGV[3] ~= '0' and ahead > ARGV[7] * 1000 then
    return {6, ahead}
  end
end

local ours = false
if redis.call('EXISTS', KEYS[3], KEYS[1]) ~= 0 then
  if look(redis.call, KEYS[1], ARGV[2]) == 0 then
    return {0, redis.call('PTTL', KEYS[1]), tells(KEYS[1])}
  end
  if redis.call('EXISTS', KEYS[3]) == 1 then
    return {0, -2, 1}
  end
  ours = true
end

-- Tokens first: what fails must fail before the lock or its lease is written.
if ARGV[3] ~= '0' then
  local stored = redis.call('GET', KEYS[2])
  if stored and not string.find(stored, '^%d+$') then
    return redis.error_reply('WRONGTYPE the token counter is not a whole number')
  end
  -- A counter that is there may be an old one, too, of a snapshot.
  local value = math.max(tonumber(stored) or 0, floor)
  local last = tonumber(ARGV[6])
  if value > LARGEST or last > LARGEST then
    return redis.error_reply('WRONGTYPE the token counter has come to its end at 2^53')
  end
  if not ours and ARGV[14] ~= '1' and tonumber(ARGV[5]) <= value then
    return {2, value}
  end
  if not stored or tonumber(stored) < last then
    if ARGV[3] == '2' or (stored and redis.call('PTTL', KEYS[2]) == -1) then
      -- Redisson's RFencedLock made it, or is to be able to count on it: it stays for ever.
      redis.call('SET', KEYS[2], ARGV[6])
    else
      redis.call('SET', KEYS[2], ARGV[6], 'PXAT', math.floor(last / 1000) + ARGV[4])
    end
  end
end

if not ours then
  local refused = take(KEYS[1], ARGV[2], ARGV[1])
  if refused then
    return refused
  end
elseif redis.call('PTTL', KEYS[1]) < tonumber(ARGV[1]) then
  -- Never shorter: a renewal of a longer lease may have come in between.
  redis.call('PEXPIRE', KEYS[1], ARGV[1])
end
return {1}
