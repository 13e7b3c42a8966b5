-- The owner waits from now on, or still. The key goes with its last waiter.
local function enter(now, owner, presence, attempt)
  local words = {string.format('-%.0f', now + presence), 'until:' .. owner}
  if redis.call('ZMSCORE', queue, owner)[1] then
    -- First: a full server refuses what takes memory as a script's first write, and so new waiters.
    redis.call('ZREM', queue, 'attempt:' .. owner)
  else
    local last = redis.call('ZREVRANGE', queue, '0', '0', 'WITHSCORES')[2]
    words[3], words[4] = (last or 0) + 1, owner
  end
  if tonumber(presence) ~= PRESENCE then
    words[#words + 1], words[#words + 2] = '-' .. presence, 'presence:' .. owner
  end
  if attempt ~= '0' then
    words[#words + 1], words[#words + 2] = '-' .. attempt, 'attempt:' .. owner
  end
  redis.call('ZADD', queue, unpack(words))
  -- Others may count as waiting for longer.
  if redis.call('PTTL', queue) < tonumber(presence) then
    redis.call('PEXPIRE', queue, presence)
  end
end

