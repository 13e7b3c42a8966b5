-- What goes before acquire.lua, to take all permits that are free: sets how many those are, one at
-- least and ARGV[2] at most. A repeated request takes what it has, but for what has expired.
do
  local own = redis.call('ZMSCORE', KEYS[2], unpack(ids(ARGV[1], ARGV[2])))
  local last = #own
  while last > 0 and not (own[last] and tonumber(own[last]) > now) do
    last = last - 1
  end
  if last == 0 then
    local free, taken = counted(KEYS[1], KEYS[2])
    if type(free) == 'table' then
      return free
    end
    local over = math.min(redis.call('ZCOUNT', KEYS[2], '-inf', now), 1000)
    last = math.min(math.max((free or ARGV[4] - taken) + over, 1), tonumber(ARGV[2]))
  end
  ARGV[2] = last
end

