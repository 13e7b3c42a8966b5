-- Takes a lock for an owner if it is free, and returns what acquire.lua returns.
--
-- Every call in here is paid for by the one thread that serves all clients: five where the lock is
-- taken often. So is every argument, and every number that becomes a text.
local function attempt(lock, counter, tombstone, lease, owner, keep, reserve)
  local ours = false
  -- One look for both: mostly neither is there.
  if redis.call('EXISTS', tombstone, lock) ~= 0 then
    if look(redis.call, lock, owner) == 0 then
      return {0, redis.call('PTTL', lock), tells(lock)}
    end
    if redis.call('EXISTS', tombstone) == 1 then
      return {0, -2, 1}
    end
    -- The answer to the first copy of this request was lost.
    ours = true
  end
  return grant(lock, counter, ours, lease, owner, keep, reserve)
end

