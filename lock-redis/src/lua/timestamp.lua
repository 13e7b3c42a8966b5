-- The server's time in microseconds, as a text, and when its 100 s began: read once in a run.
local now, since
local function timestamp()
  if not now then
    local time = redis.call('TIME')
    local micros = time[2]
    if #micros < 6 then
      micros = string.sub('00000' .. micros, -6)
    end
    now = time[1] .. micros
    since = string.sub(now, 1, -9) .. '00000000'
  end
  return now, since
end

