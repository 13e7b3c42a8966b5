-- The waiters of a fair lock, the last of the KEYS, a sorted set: an owner with its position, and
-- behind words and a colon what else is known of it, with scores below 0, so that positions come
-- last:
--
-- - `until`: up to when it counts as waiting, in milliseconds of this server's clock
-- - `presence`: for how long an attempt makes it count as waiting, in milliseconds, if not for
--   PRESENCE
-- - `attempt`: the number of its last attempt, if a release may grant it the lock
--
-- A script removes at most so many dead waiters: each is up to four members of the set.
local MOST = 100
local queue = KEYS[#KEYS]
local PRESENCE = 3000

local function clock()
  return math.floor(timestamp() / 1000)
end

local function leave(owner)
  local words = {'until:' .. owner, 'presence:' .. owner, 'attempt:' .. owner}
  return redis.call('ZREM', queue, owner, unpack(words))
end

-- The owner that is next, for how long it counts as waiting, its attempt, and its presence; nothing
-- if no owner waits. Behind too many dead ones it is not known yet: an empty text. If more is left
-- of a presence than there was, the clock was set back since, and the owner may be dead.
local function first(now)
  for _ = 1, MOST do
    local owner = redis.call('ZRANGEBYSCORE', queue, '(0', '+inf', 'LIMIT', '0', '1')[1]
    if not owner then
      return nil, 0
    end
    local words = {'until:' .. owner, 'presence:' .. owner, 'attempt:' .. owner}
    local known = redis.call('ZMSCORE', queue, unpack(words))
    local left, presence = -(known[1] or 0) - now, -(known[2] or -PRESENCE)
    if left > 0 and left <= presence then
      return owner, left, known[3], presence
    end
    leave(owner)
  end
  return '', 1
end

-- Its client is told this, and no other: the channel is called like the queue and that client.
local function tell_owner(publish, owner, text)
  redis.pcall(publish, queue .. ':' .. string.match(owner, '^[^:]*'), text)
end

local function tell_next(publish)
  local owner = first(clock())
  if owner and owner ~= '' then
    tell_owner(publish, owner, owner)
  end
end

