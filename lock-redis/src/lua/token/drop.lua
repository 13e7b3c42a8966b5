-- 1 if this owner had it: it is free now. 0 if not.
local function drop(call, key, owner)
  local found = look(call, key, owner)
  return found == 1 and call('DEL', key) or found
end

