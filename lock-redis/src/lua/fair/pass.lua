-- What goes before close.lua, for a fair lock.
--
-- KEYS[#KEYS] the queue   see queue.lua

-- The owner that is next learns of the new end.
local pass_on = pass
local function pass(key, owner, next, lease)
  local refused = pass_on(key, owner, next, lease)
  pcall(tell_next, ARGV[3])
  return refused
end

