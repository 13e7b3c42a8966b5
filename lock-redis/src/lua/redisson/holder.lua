-- Owner and hold count, of all that have it; nothing if it is free. What has an owner's name and a count for each field is
-- a lock (`mode` is what Redisson's read-write locks have besides); of anything else an error is returned.
local function holder(key)
  local fields = redis.call('HGETALL', key)
  for i = 1, #fields, 2 do
    local field, value = fields[i], fields[i + 1]
    if field ~= 'mode' and not (string.find(field, ':%-?%d') and string.find(value, '^%-?%d+$')) then
      return redis.error_reply('WRONGTYPE the hash has the field ' .. string.sub(field, 1, 40))
    end
  end
  return fields
end

