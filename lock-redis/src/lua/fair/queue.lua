-- The waiters of a fair lock, a sorted set: an owner with its position, and `until:owner` with the
-- time up to which it counts as waiting, in milliseconds of this server's clock and negative, so
-- that positions come last.
--
-- A script removes at most so many dead waiters: each is two members of the set.
local MOST = 100

local function clock()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
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
    redis.call('ZREM', queue, owner, 'until:' .. owner)
  end
  return '', 1
end

-- It waits from now on, or still, for so long. The key goes with its last waiter.
local function wait(queue, owner, now, presence)
  local last = redis.call('ZREVRANGE', queue, 0, 0, 'WITHSCORES')[2]
  redis.call('ZADD', queue, 'NX', (last or 0) + 1, owner)
  redis.call('ZADD', queue, -(now + presence), 'until:' .. owner)
  redis.call('PEXPIRE', queue, math.max(redis.call('PTTL', queue), tonumber(presence)))
end

local function leave(queue, owner)
  return redis.call('ZREM', queue, owner, 'until:' .. owner)
end

-- The owner that is next is told on the channel that is called like the queue, and the others sleep
-- on.
local function tell_next(queue, publish)
  local owner = first(queue, clock())
  if owner and owner ~= '' then
    redis.pcall(publish, queue, owner)
  end
end

