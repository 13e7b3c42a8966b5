-- Takes a lock for an owner if it is free, and returns what acquire.lua returns.
--
-- Every call in here is paid for by the one thread that serves all clients: five where the lock is
-- taken often. So is every argument, and every number that becomes a text.
local function attempt(lock, counter, tombstone, queue, lease, owner, keep, reserve, wait)
  -- One look for all: mostly none is there. The tombstone counts twice, so that it is known from
  -- the sum, once it is known whether the lock is there.
  local found = redis.call('EXISTS', tombstone, tombstone, lock, queue)
  if found == 0 then
    return grant(lock, counter, false, lease, owner, keep, reserve)
  end
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
    if not is_done and redis.call('TYPE', queue).ok ~= 'zset' then
      return redis.pcall('ZCARD', queue) -- says what is wrong
    end
    if not (is_done and left) then
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
    is_first = is_done and answer or 1
  end
  return {0, pttl, is_first == 1 and tells(lock) or 1, is_first}
end

