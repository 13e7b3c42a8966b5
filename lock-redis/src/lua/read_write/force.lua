-- What goes before force.lua, for a read-write lock.
--
-- KEYS[2] the waiting writer; left out: only readers are ended

if KEYS[2] then
  -- It keeps readers out no longer, also of a free lock.
  if redis.call('DEL', KEYS[2]) == 1 then
    redis.pcall(ARGV[2], ARGV[1], '1')
  end
elseif redis.call('HGET', KEYS[1], 'mode') ~= 'read' then
  local found = holder(KEYS[1], ARGV[3])
  if found.err then
    return found
  end
  -- A write that a replica refuses: what that lacks, its master may have.
  return redis.call('HDEL', KEYS[1], 'distlock:no-owner')
end

