-- Takes a lock for an owner if it is free and no other waiter is next, and returns what acquire.lua
-- returns.
--
-- `found` is 2 if there is a tombstone, and 1 more each if there are the lock and the queue: so
-- that the sum says whether there is a tombstone, once it is known whether there is the lock.
local function attempt(found, lock, counter, tombstone, queue, lease, owner, keep, reserve, wait)
  local ours = look(redis.call, lock, owner) ~= 0
  local pttl = ours or redis.call('PTTL', lock)
  local is_held = pttl ~= -2
  if found > (is_held and 2 or 1) and redis.call('EXISTS', tombstone) == 1 then
    return {0, -2, 1, 0}
  end
  if ours then
    -- The answer to the first copy of this request was lost, or a release granted it the lock.
    return grant(lock, counter, true, lease, owner, keep, reserve)
  end
  local is_first = 1
  if not is_held then
    local name = wait and string.match(wait, '^%S+') or owner
    local is_done, left = pcall(others_before, lock, queue, name, wait)
    if not is_done then
      local kind = redis.call('TYPE', queue).ok
      if kind ~= 'zset' and kind ~= 'none' then
        return redis.pcall('ZCARD', queue) -- says what is wrong
      end
      -- A grant to another waiter that could not be taken back stands.
      left = redis.call('EXISTS', lock) == 1 and redis.call('PTTL', lock)
    end
    if not left then
      return grant(lock, counter, false, lease, owner, keep, reserve)
    end
    pttl = left
  end
  if wait then
    local has_queue = nil
    if is_held then
      has_queue = found > 1
    end
    -- Where the user may not write the queue, or the memory is full, it waits without a place.
    local is_done, answer = pcall(enter, queue, has_queue, wait, owner, keep, reserve)
    if not is_done then
      -- Before Redis 7 an error is a text.
      local text = type(answer) == 'table' and answer.err or tostring(answer)
      answer = (string.find(text, 'NOPERM') or string.find(text, "can't run")
        or string.find(text, 'ACL failure')) and 2 or 1
    end
    is_first = answer
  end
  return {0, pttl, is_first == 0 and 1 or tells(lock), is_first}
end

