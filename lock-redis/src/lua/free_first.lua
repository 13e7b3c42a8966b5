-- Frees the lock if this owner has it or, if no owner is named, no matter who has it. Returns 1 if
-- this freed it, else 0.
local function free(key, owner)
  if owner then
    return drop(redis.call, key, owner)
  end
  return redis.call('DEL', key)
end

