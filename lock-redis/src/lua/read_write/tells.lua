-- Readers that keep a writer out, with their hold counts: it looks whether those died. One more
-- than are looked at, so that it is known whether these are all; and `mode`.
local function tells(key)
  if redis.call('HGET', key, 'mode') ~= 'read' then
    return {}
  end
  return redis.call('HRANDFIELD', key, 102, 'WITHVALUES')
end

