-- What goes before force.lua, to end only readers: what others hold stays.
if redis.call('EXISTS', KEYS[1]) == 1 and redis.call('HGET', KEYS[1], 'mode') ~= 'read' then
  local found = holder(KEYS[1], ARGV[3])
  if found.err then
    return found
  end
  -- A write that a replica refuses: what that lacks, its master may have.
  return redis.call('HDEL', KEYS[1], 'distlock:no-owner')
end

