-- 1 if this owner has the lock, or no owner is named; 0 if not. The ending of the script frees it.
local function free(key, owner)
  return owner and look(redis.call, key, owner) or 1
end

