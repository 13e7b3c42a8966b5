-- For how long, in milliseconds, a waiting writer keeps readers out.
local PRESENCE = 3000

-- For how long yet it does; nothing if none waits. One of a longer time waited before the clock was
-- set back, and may be dead.
local function writer_waits(call, key)
  local left = call('PTTL', key)
  return type(left) == 'number' and left >= 0 and left <= PRESENCE and left or nil
end

