-- This waiter waits from now on, or still. `wait` is ARGV[5] of acquire.lua, and `has_queue`
-- whether others wait; nothing if that is not known. Returns 1 if it is the first, else 0.
local function enter(queue, has_queue, wait, owner, keep, reserve)
  local now, space = timestamp(), string.find(wait, ' ', 1, true)
  local name = string.sub(wait, 1, space - 1)
  local asked, presence = string.match(wait, '^( %S+ (%S+) %S+ )', space)
  local tokens = keep and keep .. ' ' .. (reserve or '0') or '- -'
  local beginning = name .. ' ' .. owner .. asked .. tokens .. ' '
  local text = beginning .. now .. ' ' .. now
  local added = redis.pcall('ZADD', queue, 'NX', now, name, now, text)
  if type(added) == 'table' then
    -- A full server refuses what takes memory as a script's first write, and so new waiters.
    if not fields_of(queue, name) then
      error(added.err)
    end
    added = 0
  end
  if added < 2 then
    -- It waits already, and keeps its place.
    redis.call('ZREM', queue, text)
    local before, position = fields_of(queue, name)
    if before ~= name then
      redis.call('ZREM', queue, before)
    end
    redis.call('ZADD', queue, position, beginning .. position .. ' ' .. now)
  end
  -- Others may count as present for longer. Mostly this key lasts for long yet.
  presence = presence + 0
  if added < 2 or not has_queue or presence > LASTS or string.sub(now, -1) == '0' then
    redis.call('PEXPIRE', queue, math.max(redis.call('PTTL', queue), LASTS, presence))
  end
  if added < 2 or has_queue == nil then
    return first_present(queue, name) == name and 1 or 0
  end
  return has_queue and 0 or 1
end

-- For a lock that is free: for how long others hold it or go first, in milliseconds; nothing if it
-- is this waiter's turn, which then waits no longer. `wait` is ARGV[5] of acquire.lua.
local function others_before(lock, queue, name, wait)
  local publish = wait and string.match(wait, '%S+$') or '-'
  if publish ~= '-' then
    -- It ended without a release.
    local next, _, left, is_error = grant_next(lock, queue, publish, name, '-')
    if next and next ~= name then
      return left or redis.call('PTTL', lock)
    end
    -- The first one cannot be told, and may be dead: a client takes the lock. In strict order, and
    -- of readers and writers, each waits for its turn; their names have a colon.
    if is_error and not string.find(name, ':', 1, true) then
      leave(queue, name)
      return nil
    end
  end
  local next, left = first_present(queue, name)
  if next and next ~= name then
    return left
  end
  leave(queue, name)
  return nil
end

