-- acquire: takes the lock for an owner if it is free, and makes its fencing tokens.
--
-- KEYS[1] the lock
-- KEYS[2] the counter     string, the largest token handed out or set aside
-- KEYS[3] the tombstone   present while this owner is closed
-- ARGV[1] lease in milliseconds
-- ARGV[2] owner
-- ARGV[3] tokens: "0" none, "1" the counter expires, "2" the counter stays
-- ARGV[4] how long, in milliseconds, a counter is kept after the time it stands for; up to a minute less
-- ARGV[5] how many tokens to set aside behind the first
--
-- Returns the first token, or 1 granted without tokens; {0, pttl, told} another owner has it (-1: for ever), or this one
-- is closed (-2), and its release will be told of (1) or not (0).
--
-- Atomic because two owners must never both find the lock free, a token must belong to exactly one grant, and a late
-- copy of a request must see the tombstone before it takes the lock.
--
-- Every call in here is paid for by the one thread that serves all clients: six where the lock is taken often. Numbers
-- are given to `redis.call` as they are, which writes them exactly, to seventeen digits; `n..''` would round to fourteen.

-- Lua counts in doubles: above this a token would not be exact.
local LARGEST = 9007199254740991
-- In microseconds, as tokens are.
local MINUTE = 60000000

local ours = false
-- One look for both: mostly neither is there.
if redis.call('EXISTS', KEYS[3], KEYS[1]) ~= 0 then
  if look(redis.call, KEYS[1], ARGV[2]) == 0 then
    return {0, redis.call('PTTL', KEYS[1]), tells(KEYS[1])}
  end
  if redis.call('EXISTS', KEYS[3]) == 1 then
    return {0, -2, 1}
  end
  -- The answer to the first copy of this request was lost.
  ours = true
end

-- Tokens first: what fails must fail before the lock or its lease is written, and of several writes in a script only
-- the first is refused when the memory is full.
local first = 1
if ARGV[3] ~= '0' then
  local stored = redis.call('GET', KEYS[2])
  local value = tonumber(stored)
  local time = redis.call('TIME')
  first = time[1] * 1000000 + time[2]
  local last = first + ARGV[5]
  local minute = first - first % MINUTE
  if value and value >= minute and value < first and last < minute + MINUTE and ARGV[3] == '1' and not ours then
    -- The expiry, if there is one, was set in this minute: early enough, and not to be reckoned anew each time.
    redis.call('SET', KEYS[2], last, 'KEEPTTL')
  else
    if stored and not string.find(stored, '^%d+$') then
      return redis.error_reply('WRONGTYPE the token counter is not a whole number')
    end
    if stored and value > LARGEST then
      return redis.error_reply('WRONGTYPE the token counter is beyond 2^53')
    end
    if ours and stored then
      -- The range that the first copy got.
      first = value - ARGV[5]
    else
      if stored and value >= first then
        first = value + 1
        last = first + ARGV[5]
      end
      if last > LARGEST then
        return redis.error_reply('WRONGTYPE the token counter has come to its end at 2^53')
      end
      if ARGV[3] == '2' then
        redis.call('SET', KEYS[2], last)
      elseif stored and redis.call('PTTL', KEYS[2]) == -1 then
        -- Redisson's RFencedLock made it: it counts from here for ever.
        redis.call('SET', KEYS[2], last)
      else
        redis.call('SET', KEYS[2], last, 'PXAT', math.floor(last / 1000) + ARGV[4])
      end
    end
  end
end

if not ours then
  local refused = take(KEYS[1], ARGV[2], ARGV[1])
  if refused then
    return refused
  end
else
  -- Never shorter: a renewal of a longer lease may have come in between. Written also where nothing changes: since 7.2
  -- WAIT looks only at what its own connection wrote, and without a write says that all replicas have it.
  redis.call('PEXPIRE', KEYS[1], math.max(redis.call('PTTL', KEYS[1]), tonumber(ARGV[1])))
end
return first
