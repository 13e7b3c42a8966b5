-- 1 if this owner has it, 0 if not; `call` is `redis.call`, or `redis.pcall` where an error is to
-- be looked at. GETEX because a replica refuses it, and GET it does not: what that lacks, its
-- master may have.
local function look(call, key, owner)
  local length = call('STRLEN', key)
  if type(length) == 'table' then
    return length
  end
  if length > 4096 then
    -- No lock is so long, and it is not read: the error is that of any other kind of value.
    return call('HLEN', key)
  end
  local value = call('GETEX', key)
  if type(value) == 'table' then
    return value
  end
  return value == owner and 1 or 0
end
