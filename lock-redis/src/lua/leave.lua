-- The fields of this waiter as they are stored, and its position; nothing if it does not wait.
local function fields_of(queue, name)
  local position = redis.call('ZMSCORE', queue, name)[1]
  if not position then
    return nil
  end
  local found = redis.call('ZRANGEBYSCORE', queue, position, position)
  for _, text in ipairs(found) do
    if string.sub(text, 1, #name + 1) == name .. ' ' then
      return text, position
    end
  end
  return name, position
end

-- This waiter waits no longer. Returns whether it waited.
local function leave(queue, name)
  local text = fields_of(queue, name)
  if text then
    redis.call('ZREM', queue, name, text)
    return true
  end
  return false
end

-- The same of a thread that gives up, if the last attempt was this owner's. With `stays` another
-- thread of its client waits in its place, and attempts soon.
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

