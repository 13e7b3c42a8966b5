-- Deletes what may be large: its memory is freed beside the server's work, if the user may do that.
local function unlink(key)
  local done = redis.pcall('UNLINK', key)
  return type(done) == 'table' and redis.call('DEL', key) or done
end

