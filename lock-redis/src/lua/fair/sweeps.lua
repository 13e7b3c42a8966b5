-- What goes before close.lua, for a fair read-write lock.
--
-- ARGV[#ARGV] "1" if dead readers may be ended with this one, because no slot is moving
local sweeps = table.remove(ARGV) == '1'

-- The hold of a reader ends also where the lock was taken from it.
--
-- KEYS[4] the hold of a reader; of a writer the queue, the last of the KEYS
local gone_from_queue = gone
local function gone(call, key, owner)
  if #KEYS > 4 then
    redis.call('DEL', KEYS[4])
  end
  return gone_from_queue(call, key, owner)
end

