-- 1 if this owner has it, 0 if not; `call` is `redis.call`, or `redis.pcall` where an error is to
-- be looked at.
local function look(call, key, owner)
  return call('HEXISTS', key, owner)
end

