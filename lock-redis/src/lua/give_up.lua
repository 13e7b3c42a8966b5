-- Tells the waiters of other libraries, and the next of ours, that a lock ends earlier or later.
-- Returns what tell.lua returns.
local function tell_all(lock, publish, channel)
  local told = tell(publish, channel, '0')
  pcall(tell_next, queue_of(lock), publish)
  return told
end

-- Grants a lock that has been free to the next waiter. The release of that announces itself.
local function pass_on_late(lock, queue, publish, turns)
  local counts = turns ~= 'free'
  if counts then
    local name, _, _, is_refused = grant_next(lock, queue, publish, nil, '-')
    if name then
      return
    end
    counts = not is_refused
  end
  tell_next(queue, publish, counts)
end

-- A waiter whose thread gives up waits no longer, if the last attempt was this owner's; returns
-- whether it was. With `stays` another thread of its client waits in its place, and attempts soon.
local function step_back(queue, name, owner, stays)
  local text, position = fields_of(queue, name)
  if not text or string.match(text, '^%S+ (%S+)') ~= owner then
    return false
  end
  if stays then
    pass_over(queue, position, text)
  else
    redis.call('ZREM', queue, name, text)
  end
  if not first_present(queue) then
    -- Who was passed over enters anew, and no one goes first meanwhile. Otherwise the queue would
    -- stay where none of them attempts any more.
    redis.call('DEL', queue)
  end
  return true
end

-- The first waiter of a free lock, which does not take it, waits no longer.
local function skip_next(lock, publish, turns)
  local queue = queue_of(lock)
  pcall(function()
    local name = first_present(queue) or redis.call('ZRANGE', queue, 0, 0)[1]
    if name then
      leave(queue, name)
      pass_on_late(lock, queue, publish, turns)
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
