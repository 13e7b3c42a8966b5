-- The server's time in microseconds, as a text: read once in a run.
local now
local function timestamp()
  if not now then
    local time = redis.call('TIME')
    local micros = time[2]
    if #micros < 6 then
      micros = string.sub('00000' .. micros, -6)
    end
    now = time[1] .. micros
  end
  return now
end

