-- Tells the waiters of other libraries, and the next of ours, that a lock ends earlier or later.
-- Returns what tell.lua returns.
local function tell_all(lock, publish, channel)
  local told = tell(publish, channel, '0')
  pcall(tell_next, queue_of(lock), publish)
  return told
end

-- The first waiter of a free lock, which does not take it, waits no longer.
local function skip_next(lock, publish)
  local queue = queue_of(lock)
  pcall(function()
    local name = first_present(queue) or redis.call('ZRANGE', queue, 0, 0)[1]
    if name then
      leave(queue, name)
      pass_on_late(lock, queue, publish)
    end
  end)
end

-- An owner that does not hold the lock waits no longer: under its own name, or that of its client,
-- which has no number. Others may come in beside the holders once it is not the first any more.
-- With `turns` "stay" another thread of its client waits in its place, and attempts soon.
local function give_up(lock, owner, publish, turns)
  if turns == 'none' then
    return
  end
  local queue, shared = queue_of(lock), string.gsub(owner, ':%d+', '', 1)
  local first = first_present(queue)
  if step_back(queue, owner, owner) or step_back(queue, shared, owner, turns == 'stay') then
    if redis.call('EXISTS', lock) == 0 then
      pass_on_late(lock, queue, publish, turns)
    elseif first == owner or first == shared then
      tell_next(queue, publish)
    end
  end
end
