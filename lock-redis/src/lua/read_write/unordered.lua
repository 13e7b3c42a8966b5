-- What goes before acquire_read.lua: only a waiting writer goes first.
local function before_us(is_free)
  return is_free and KEYS[5] and writer_waits(redis.call, KEYS[5]) or nil
end

local function let_next_in()
end

