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

