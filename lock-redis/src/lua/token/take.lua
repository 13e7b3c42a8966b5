-- Gives it to this owner. An error is returned, and then nothing was written.
local function take(key, owner, lease)
  local done = redis.pcall('SET', key, owner, 'PX', lease)
  if done.err then
    return done
  end
end

