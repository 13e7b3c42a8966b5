-- inspect_rw: who holds the lock, and for how long yet.
--
-- KEYS[1] the lock
-- KEYS[2] the queue; left out: readers do not care for a writer that waits
--
-- Returns {pttl, number of holders, mode, 1 if a writer waits}, and behind them holders with their
-- hold counts, not all if there are many; pttl is -2 if it is free and -1 if it never ends, mode is
-- "" of a mutex.
--
-- Atomic because the holders and the time left must be of one moment. Changes nothing.

local function writer_waits(queue)
  for _, text in ipairs(redis.call('ZRANGE', queue, 0, 2 * MOST - 1)) do
    local name = string.match(text, '^(%S+:write) ')
    if name and read_fields(name, text) then
      return true
    end
  end
  return false
end

local found = holder(KEYS[1], 10)
if found.err then
  return found
end
local mode = redis.call('HGET', KEYS[1], 'mode')
-- No owner is called that; but a replica, which may have an old lock or none yet, refuses.
gone(redis.call, KEYS[1], 'distlock:no-owner')
local answer = {redis.call('PTTL', KEYS[1]), redis.call('HLEN', KEYS[1]), mode or ''}
answer[4] = KEYS[2] and writer_waits(KEYS[2]) and 1 or 0
if mode then
  answer[2] = answer[2] - 1
  found = redis.call('HRANDFIELD', KEYS[1], 102, 'WITHVALUES')
  for i = 1, #found, 2 do
    if not is_field(found[i], true) then
      return foreign(found[i])
    end
  end
end
for _, text in ipairs(found) do
  answer[#answer + 1] = text
end
return answer
