-- Returns the number of free permits (nil if no client has used the semaphore yet) and the number
-- of taken permits. A table with an error for other data.
local function counted(key, ids)
  local free, taken = redis.call('GETRANGE', key, 0, 11), redis.pcall('ZCARD', ids)
  if free ~= '' and not (#free <= 11 and (free == '0' or string.find(free, '^%-?[1-9]%d*$'))) then
    return redis.error_reply('WRONGTYPE the number of permits is no whole number')
  end
  if type(taken) == 'table' then
    return string.find(taken.err, '^WRONGTYPE') and redis.error_reply('WRONGTYPE the permits')
      or taken
  end
  return tonumber(free), taken
end

