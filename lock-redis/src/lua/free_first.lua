-- Frees the lock if this owner has it, or whoever has it if no owner is named. Returns 1 if it is
-- free now, 0 if not.
local function free(key, owner)
  if owner then
    return drop(redis.call, key, owner)
  end
  return redis.call('DEL', key)
end

