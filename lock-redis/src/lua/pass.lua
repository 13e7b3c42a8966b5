-- Gives it to another owner, for this lease, which may be shorter. An error is returned, and then
-- it is free.
local function pass(key, _, owner, lease)
  redis.call('DEL', key)
  return take(key, owner, lease)
end

