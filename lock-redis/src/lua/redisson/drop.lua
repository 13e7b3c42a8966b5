-- 1 if this owner had it: it is free now, for the key goes with its last field. 0 if not.
local function drop(call, key, owner)
  return call('HDEL', key, owner)
end

