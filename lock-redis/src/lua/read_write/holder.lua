-- The same of a lock with more readers than can be looked at: some of them stand for all.
local usual = holder
local function holder(key)
  if redis.call('HLEN', key) > MOST then
    local mode = redis.call('HGET', key, 'mode')
    if mode == 'read' or mode == 'write' then
      return redis.call('HRANDFIELD', key, 1, 'WITHVALUES')
    end
  end
  return usual(key)
end

