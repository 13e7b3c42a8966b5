-- What goes before force.lua, for a read-write lock.
--
-- KEYS[2] the waiting writer

-- It keeps readers out no longer, also of a free lock.
if redis.call('DEL', KEYS[2]) == 1 then
  redis.pcall(ARGV[2], ARGV[1], '1')
end

