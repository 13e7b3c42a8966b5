-- Returns the owner and hold count of the first holder, and the mode of a read-write lock; an empty
-- table if the lock is free. A lock is one field, `UUID:number` with a count; a read-write lock of
-- Redisson's has `mode` besides, and a field for each holder. With `takes_many`, the fields of a
-- read-write lock are not checked if there are more than that (`MOST` if it is no number), and the
-- owner is an empty text. A script that gives a number must not delete the lock by that alone.
-- Anything else gives an error.
--
-- A hash that is no lock may be large, so the size is read first, then the fields, and the values
-- only if all fields are those of a lock.
local MOST = 1000
local UUID = '^' .. string.rep('%x', 8) .. string.rep('%-%x%x%x%x', 3)
  .. '%-' .. string.rep('%x', 12)
local OWNER, WRITER = UUID .. ':%-?%d+$', UUID .. ':%-?%d+:write$'

-- At most 40 bytes of a text, and no part of a character.
local function beginning(text)
  local last = math.min(#text, 40)
  for _ = 1, 3 do
    local next = string.byte(text, last + 1)
    if next and next >= 128 and next < 192 then
      last = last - 1
    end
  end
  return string.sub(text, 1, last)
end

local function is_field(field, is_read_write)
  return string.find(field, OWNER)
    or (is_read_write and (field == 'mode' or string.find(field, WRITER)))
end

local function foreign(field)
  return redis.error_reply('WRONGTYPE the hash has the field ' .. beginning(field))
end

local function holder(key, takes_many)
  local size = redis.call('HLEN', key)
  if size == 0 then
    return {}
  end
  local is_read_write = size > 1 and redis.call('HEXISTS', key, 'mode') == 1
  if is_read_write and takes_many and size > (tonumber(takes_many) or MOST) then
    local mode = redis.call('HMGET', key, 'mode')[1]
    if mode == 'read' or mode == 'write' then
      return {'', '1', mode}
    end
  end
  if size > MOST or (size > 1 and not is_read_write) then
    return redis.error_reply('WRONGTYPE the hash has ' .. string.format('%.0f', size) .. ' fields')
  end
  local fields = redis.call('HKEYS', key)
  for _, field in ipairs(fields) do
    if not is_field(field, is_read_write) then
      return foreign(field)
    end
  end
  local values, found, mode = redis.call('HMGET', key, unpack(fields)), {}, nil
  for i, field in ipairs(fields) do
    local value = values[i]
    local is_value = #value <= 19 and string.find(value, '^[1-9]%d*$')
    if field == 'mode' then
      is_value, mode = value == 'read' or value == 'write', value
    elseif #found == 0 then
      found = {field, value}
    end
    if not is_value then
      return foreign(field)
    end
  end
  found[#found + 1] = mode
  return found
end
