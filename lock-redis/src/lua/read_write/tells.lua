-- Holders that keep a writer out, with their hold counts, where they are readers; it waits from now
-- on. One more than are looked at, so that it is known whether these are all.
local function tells(key)
  if redis.call('EXISTS', KEYS[3]) == 1 then
    return {}
  end
  if KEYS[4] then
    -- Of several writers the first. Without it readers may go first, which is no reason to fail.
    local first = redis.pcall('GET', KEYS[4])
    if not first or first == ARGV[2] then
      redis.pcall('SET', KEYS[4], ARGV[2], 'PX', 3000)
    end
  end
  if redis.call('HGET', key, 'mode') ~= 'read' then
    return {}
  end
  return redis.call('HRANDFIELD', key, 101, 'WITHVALUES')
end

