-- Gives it to this owner, which is a writer, or waits for the mutex of this name.
local hold = take
local function take(key, owner, lease)
  if string.find(owner, ':write$') then
    redis.call('HSET', key, 'mode', 'write')
  end
  return hold(key, owner, lease)
end

