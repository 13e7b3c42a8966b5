-- acquire: takes the lock for an owner if it is free, and makes its fencing tokens.
--
-- KEYS[1] the lock        hash, owner -> hold count, as Redisson's RLock writes it
-- KEYS[2] the counter     string, the largest token handed out or set aside
-- KEYS[3] the tombstone   present while this owner is closed
-- ARGV[1] lease in milliseconds
-- ARGV[2] owner
-- ARGV[3] tokens: "0" none, "1" the counter expires, "2" the counter stays
-- ARGV[4] how long, in milliseconds, a counter is kept after the time it stands for
-- ARGV[5] how many tokens to set aside behind the first
--
-- Returns {1, first, last} granted, {1} granted without tokens, {0, pttl} another owner has it (-1: for ever),
-- {2} this owner is closed.
--
-- Atomic because two owners must never both find the lock free, a token must belong to exactly one grant, and a late
-- copy of a request must see the tombstone before it sees the lock.

-- Lua counts in doubles: above this a token would not be exact.
local LARGEST = 9007199254740991

local function counter()
  local stored = redis.call('GET', KEYS[2])
  if not stored then
    return nil
  end
  if not string.find(stored, '^%d+$') then
    return nil, 'WRONGTYPE the token counter is not a whole number'
  end
  local value = tonumber(stored)
  if value > LARGEST then
    return nil, 'WRONGTYPE the token counter is beyond 2^53'
  end
  return value
end

local function new_tokens(stored)
  local reserve = tonumber(ARGV[5])
  local time = redis.call('TIME')
  local first = tonumber(time[1]) * 1000000 + tonumber(time[2])
  if stored and stored >= first then
    first = stored + 1
  end
  local last = first + reserve
  if last > LARGEST then
    return nil, nil, 'WRONGTYPE the token counter has come to its end at 2^53'
  end
  -- Not `last..''`, which rounds to fourteen digits.
  local text = string.format('%.0f', last)
  if ARGV[3] == '2' then
    redis.call('SET', KEYS[2], text)
  elseif stored and redis.call('PTTL', KEYS[2]) == -1 then
    -- Redisson's RFencedLock made it: it counts from here for ever.
    redis.call('SET', KEYS[2], text)
  else
    local expiry = math.floor(last / 1000) + tonumber(ARGV[4])
    redis.call('SET', KEYS[2], text, 'PXAT', string.format('%.0f', expiry))
  end
  return first, last
end

local lease = tonumber(ARGV[1])
if redis.call('EXISTS', KEYS[3]) == 1 then
  return {2}
end

local pttl = redis.call('PTTL', KEYS[1])
local ours = false
if pttl ~= -2 then
  if redis.call('HEXISTS', KEYS[1], ARGV[2]) == 0 then
    return {0, pttl}
  end
  -- The answer to the first copy of this request was lost.
  ours = true
end

-- Tokens first: what fails must fail before the lock or its lease is written, and of several writes in a script only
-- the first is refused when the memory is full.
local first, last
if ARGV[3] ~= '0' then
  local stored, wrong = counter()
  if not wrong then
    if ours and stored then
      -- The range that the first copy got.
      first = stored - tonumber(ARGV[5])
      last = stored
    else
      first, last, wrong = new_tokens(stored)
    end
  end
  if wrong then
    return redis.error_reply(wrong)
  end
end

if not ours then
  -- The key is not there, so this changes nothing. But a user who may not PEXPIRE is refused here, and not between
  -- HSET and PEXPIRE, which would leave a lock that never ends.
  redis.call('PEXPIRE', KEYS[1], ARGV[1])
  redis.call('HSET', KEYS[1], ARGV[2], '1')
  redis.call('PEXPIRE', KEYS[1], ARGV[1])
elseif pttl < lease then
  -- Never shorter: a renewal of a longer lease may have come in between.
  redis.call('PEXPIRE', KEYS[1], ARGV[1])
end
if first then
  return {1, first, last}
end
return {1}
