-- The waiters of a fair lock, a sorted set: an owner with its position, and behind words and a
-- colon what else is known of it, with scores below 0, so that positions come last:
--
-- - `until`: up to when it counts as waiting, in milliseconds of this server's clock
-- - `attempt`: the number of its last attempt, if a release may grant it the lock
--
-- A script removes at most so many dead waiters: each is up to three members of the set.
local MOST = 100

local function clock()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

local function leave(queue, owner)
  return redis.call('ZREM', queue, owner, 'until:' .. owner, 'attempt:' .. owner)
end

-- The owner that is next, and for how long it counts as waiting; nothing if no owner waits. Behind
-- too many dead ones it is not known yet: an empty text.
local function first(queue, now)
  for _ = 1, MOST do
    local owner = redis.call('ZRANGEBYSCORE', queue, '(0', '+inf', 'LIMIT', 0, 1)[1]
    if not owner then
      return nil, 0
    end
    local left = -(redis.call('ZSCORE', queue, 'until:' .. owner) or 0) - now
    if left > 0 then
      return owner, left
    end
    leave(queue, owner)
  end
  return '', 1
end

-- It waits from now on, or still, for so long; `attempt` is "0" if no release may grant it the
-- lock. The key goes with its last waiter.
local function wait(queue, owner, now, presence, attempt)
  local last = redis.call('ZREVRANGE', queue, 0, 0, 'WITHSCORES')[2]
  redis.call('ZADD', queue, 'NX', (last or 0) + 1, owner)
  local ends = string.format('-%.0f', now + presence)
  if attempt == '0' then
    redis.call('ZADD', queue, ends, 'until:' .. owner)
    redis.call('ZREM', queue, 'attempt:' .. owner)
  else
    redis.call('ZADD', queue, ends, 'until:' .. owner, '-' .. attempt, 'attempt:' .. owner)
  end
  redis.call('PEXPIRE', queue, presence)
end

-- Its client is told this, and no other: the channel is called like the queue and that client.
local function tell(queue, publish, owner, text)
  redis.pcall(publish, queue .. ':' .. string.match(owner, '^[^:]*'), text)
end

local function tell_next(queue, publish)
  local owner = first(queue, clock())
  if owner and owner ~= '' then
    tell(queue, publish, owner, owner)
  end
end

