-- Holders that keep a writer out, where they are readers; it waits from now on.
local function tells(key)
  if redis.call('EXISTS', KEYS[3]) == 1 then
    return {}
  end
  if KEYS[4] then
    -- Of several writers the first. Without it readers may go first, which is no reason to fail.
    if redis.pcall('GET', KEYS[4]) == ARGV[2] then
      redis.pcall('PEXPIRE', KEYS[4], PRESENCE)
    elseif not writer_waits(redis.pcall, KEYS[4]) then
      redis.pcall('SET', KEYS[4], ARGV[2], 'PX', PRESENCE)
    end
  end
  return readers_of(key)
end

