-- Ends some holds of readers whose leases are over, which no writer has asked about: so many are
-- looked at, at random. The keys of their holds are called like that of this owner, `hold`, and
-- are in its slot; what a server refuses to say of them says nothing. Not where a slot may be
-- moving to this server: there it would miss what has not come yet.
local function sweep(key, owner, count, hold)
  local found = redis.call('HRANDFIELD', key, count, 'WITHVALUES')
  local from, to = string.find(hold, owner, 1, true)
  for i = 1, #found, 2 do
    local reader, holds = found[i], tonumber(found[i + 1])
    if reader ~= owner and holds and holds <= 10 and not string.find(reader, ':write$') then
      local begins = string.sub(hold, 1, from - 1) .. reader .. string.sub(hold, to + 1, -2)
      local is_over = true
      for number = 1, holds do
        is_over = is_over and redis.pcall('PTTL', begins .. number) == -2
      end
      if is_over then
        redis.call('HDEL', key, reader)
      end
    end
  end
end

