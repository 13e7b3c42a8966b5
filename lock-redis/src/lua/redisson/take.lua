-- Gives it to this owner. An error is returned, and then nothing was written.
local function take(key, owner, lease)
  redis.call('HSET', key, owner, '1')
  local done = redis.pcall('PEXPIRE', key, lease)
  if done == 1 then
    return nil
  end
  -- A user who may not PEXPIRE would leave a lock that never ends. Asked again, now that there is
  -- nothing that it could change, it says why.
  redis.call('DEL', key)
  redis.call('PEXPIRE', key, lease)
  return done
end

