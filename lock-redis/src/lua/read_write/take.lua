-- Gives it to this writer, which waits no more: readers compete with the next one.
local hold = take
local function take(key, owner, lease)
  redis.call('HSET', key, 'mode', 'write')
  local refused = hold(key, owner, lease)
  if not refused then
    compete()
  end
  return refused
end

