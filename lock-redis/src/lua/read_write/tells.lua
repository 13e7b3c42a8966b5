-- Holders that keep a writer out, with their hold counts, where they are readers; it waits from now on. One more than are
-- looked at, so that it is known whether these are all.
local function tells(key)
  if redis.call('EXISTS', KEYS[3]) == 1 then
    return {}
  end
  if KEYS[4] then
    -- Without it readers may go first, which is no reason to fail.
    redis.pcall('SET', KEYS[4], '1', 'PX', 3000)
  end
  if redis.call('HGET', key, 'mode') ~= 'read' then
    return {}
  end
  return redis.call('HRANDFIELD', key, 101, 'WITHVALUES')
end

