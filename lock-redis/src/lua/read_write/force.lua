-- What goes before force.lua, for a read-write lock.
--
-- KEYS[2] the waiting writer, or of a fair lock the queue; left out: only readers are ended
-- ARGV[4] of a fair lock "readers" if only they are ended, or "all"

local only_readers = ARGV[4] == 'readers' or not KEYS[2]
local mode = redis.call('HGET', KEYS[1], 'mode')
local is_free = redis.call('EXISTS', KEYS[1]) == 0
if ARGV[4] then
  if is_free or mode == 'read' or not only_readers then
    -- The head of the queue of a free lock, which does not take it, waits no longer. Other data
    -- under the queue's key is no reason to keep the lock.
    pcall(function()
      if is_free then
        leave(first(clock()) or '')
      end
      tell_next(ARGV[2])
    end)
  end
elseif KEYS[2] then
  -- It keeps readers out no longer, also of a free lock.
  if redis.call('DEL', KEYS[2]) == 1 then
    redis.pcall(ARGV[2], ARGV[1], '1')
  end
end
if only_readers and mode ~= 'read' then
  local found = holder(KEYS[1], ARGV[3])
  if found.err then
    return found
  end
  -- A write that a replica refuses: what that lacks, its master may have.
  return redis.call('HDEL', KEYS[1], 'distlock:no-owner')
end

